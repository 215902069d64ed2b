"""The only place that decides retry, handover, finish and hold. Pure: values in, values out."""

"""A worker's life: deadline, notice, agreement of ranks, capture and restore, handover.

Used by `train` and by the integrations; it knows nothing of recipes.
"""

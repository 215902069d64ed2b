"""Submit, poll, cancel: one port. So far one backend, `local`, which starts supervisors here."""

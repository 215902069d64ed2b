"""What happened and what was measured: events, metrics, the ledger of time.

Append-only JSON lines, one writer per file, merged on read: appending from several hosts to one
file corrupts it on NFS. Standard library only.
"""

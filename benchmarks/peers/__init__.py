"""The same turn done by Laneway's peers: one module a peer, one driver (`run`), one pure report."""

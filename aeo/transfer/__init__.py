"""Moving folders between a worker and the controller: addresses, rsync, and the manifest of each result."""

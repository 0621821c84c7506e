"""Moving folders between a worker and the controller: addresses, rsync, and the manifest that proves a copy complete."""

"""The controller's own rsync daemon, for workers on other machines where no other way of files was configured.

`modules`: what each worker may read and write of the shared root, as the daemon's configuration. `daemon`: the
process, kept up by the control process.
"""

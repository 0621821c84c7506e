"""All in one machine: the embedded server, the controller and local workers."""

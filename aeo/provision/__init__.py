"""From a bare machine to a worker, by plain ssh: installing, upgrading, taking leave.

==================  ==========================================================================
host                one multiplexed ssh connection
facts               what the machine is, and whether it can be a worker
steps               steps in order, each shown; a second run goes on where the first stopped
record              what the controller remembers of a machine, and how its last steps went
wheels              packages made of what runs here
install             uv, AEO, executors, rsync
entrance            the token that lets in one worker
serve               settings, service, tunnel, registration
work                the steps of provisioning, of an upgrade, of taking leave
behind              the same in the background, for pages
tunnels             kept by the control process
background          a worker without a service manager; runs on the worker's machine
==================  ==========================================================================
"""

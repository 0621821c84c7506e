"""Secrets: values that trials need and nobody else may see, such as keys of model providers.

They are set once on the controller (`vault`), encrypted with a key that lies elsewhere (`keyring`). An evaluation names
those it needs (`needs`). A worker that runs a trial of it asks for them (`delivery`), keeps them in memory and gives
them to the executor's session as `aeo.executors.TrialContext.environment`; it takes them out of what the trial leaves,
and so does the controller (`hiding`). What is not set on the controller may stand in the environment of the workers.
"""

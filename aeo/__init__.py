"""Agent Eval Orchestrator."""

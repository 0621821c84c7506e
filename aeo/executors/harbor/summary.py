"""Reads a finished Harbor trial in the platform's words, trusting nothing in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aeo.core.errors import InputError
from aeo.core.model import Outcome, PlannedTrial, TrialSummary
from aeo.executors.result import (
    MESSAGE_LIMIT,
    clean,
    cost,
    count,
    durations,
    moment,
    part,
    read_json,
    usable_rewards,
)
from aeo.executors.statistics import CANCELLED

#: Largest ``result.json``, bytes: Harbor keeps token-level details of rollouts in it.
SIZE_LIMIT = 64 * 1024 * 1024
#: Steps a trial may have.
_STEP_LIMIT = 1000
#: Errors after which a reward does not count (Harbor 0.26, ``models/trial/error_policy.py``).
INVALIDATING = frozenset(
    {
        *("EnvironmentStartTimeoutError", "SandboxBuildFailedError", "AgentSetupTimeoutError", "HealthcheckError"),
        *("SandboxLikelyOutOfMemoryError", "MemoryLimitExceededError", "SSHAccessError", "GKEExecStreamClosedError"),
        *("GKEPodNotFoundError", "RuntimeRequestError", "AddTestsDirError", "DownloadVerifierDirError"),
        *("ApiError", "ApiRateLimitError", "ApiInternalServerError", "ApiOverloadedError"),
        *("ApiConnectionClosedError", "ApiResponseStalledError", "UnknownApiError", "NetworkConnectionError"),
        *("ApiConnectionError", "ApiUsageLimitError", "RateLimitError", "InternalServerError"),
        *("ServiceUnavailableError", "APIConnectionError", "APIError", "Timeout"),
        *("UnsupportedModelParametersError", "BadRequestError", "UnprocessableEntityError"),
        *("UnsupportedParamsError", "APIResponseValidationError", "BudgetExceededError", "VerifierTimeoutError"),
        *("RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"),
        *("AgentAuthenticationError", "ModelNotFoundError", "ApiProviderResourceNotFoundError"),
        *("AuthenticationError", "PermissionDeniedError", "NotFoundError", "ServiceOperationsUnsupportedError"),
        *("VercelScopeError", "DspyImportError", "MissingExtraError", "RegradeError", "CancelledError"),
    }
)
#: Errors that are the trial's own doing, not the infrastructure's: it ran, but there is no usable reward.
_ITS_OWN = frozenset(
    {
        *("VerifierTimeoutError", "RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"),
        *("NonZeroAgentExitCodeError", "AgentTimeoutError", "ContextWindowExceededError", "OutputTokenExceededError"),
        *("ContextLengthExceededError", "OutputLengthExceededError", "AgentSafetyRefusalError"),
        "ContentPolicyViolationError",
    }
)

#: Errors that come again however often the trial runs (the same table: should_retry is false).
_FINAL = frozenset(
    {
        *("UnsupportedModelParametersError", "BadRequestError", "UnprocessableEntityError"),
        *("UnsupportedParamsError", "APIResponseValidationError", "BudgetExceededError"),
        *("AgentAuthenticationError", "ModelNotFoundError", "ApiProviderResourceNotFoundError"),
        *("AuthenticationError", "PermissionDeniedError", "NotFoundError", "ServiceOperationsUnsupportedError"),
        *("VercelScopeError", "DspyImportError", "MissingExtraError", "RegradeError"),
    }
)


def summarise(trial: PlannedTrial, trial_dir: Path) -> TrialSummary:
    """See `aeo.executors.Executor.summarise`."""
    document = read_json(trial_dir / "result.json", limit=SIZE_LIMIT)
    if document.get("trial_name") != trial.name or document.get("task_name") != trial.task:
        raise InputError(f"is of another trial than {trial.name!r}.", field="result.json")
    steps = _steps(document)
    errors = [error for holder in (document, *steps) for error in _error(holder)]
    rewards = usable_rewards(part(document, "verifier_result").get("rewards"))
    outcome = _outcome(errors, rewards)
    used = [part(holder, "agent_result") for holder in ((document,) if document.get("agent_result") else steps)]
    error_type, message = (errors[0][0], errors[0][1]) if errors else ("", "")
    if outcome is Outcome.INVALID and not errors:
        error_type, message = (
            "NoUsableReward",
            "The trial ended without a reward, or with one that is no finite number.",
        )
    return TrialSummary(
        trial=trial.name,
        task=trial.task,
        outcome=outcome,
        rewards=rewards if outcome is Outcome.SCORED else {},
        started_at=moment(document, "started_at"),
        finished_at=moment(document, "finished_at"),
        phases=durations([document, *steps]),
        input_tokens=count(used, "n_input_tokens"),
        cache_tokens=count(used, "n_cache_tokens"),
        output_tokens=count(used, "n_output_tokens"),
        cost_usd=cost(used),
        error_type=error_type,
        error_message=message,
        error_types=tuple(kind for kind, _, _ in errors),
        retryable=not any(kind in _FINAL for kind, _, _ in errors),
        labels=trial.labels,
    )


def _outcome(errors: list[tuple[str, str, bool]], rewards: Mapping[str, float]) -> Outcome:
    if rewards and all(valid for _, _, valid in errors):
        return Outcome.SCORED
    kinds = {kind for kind, _, _ in errors}
    if CANCELLED in kinds:
        return Outcome.CANCELLED
    return Outcome.INFRA_ERROR if kinds - _ITS_OWN else Outcome.INVALID


def _error(holder: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Type, message, and whether a reward counts in spite of it."""
    error = part(holder, "exception_info")
    if not error:
        return
    kind, message = error.get("exception_type"), error.get("exception_message")
    if not isinstance(kind, str) or not kind or not isinstance(message, str):
        raise InputError("is no error with a type and a message.", field="exception_info")
    override = part(error, "policy_override").get("has_valid_reward")
    valid = override if isinstance(override, bool) else kind not in INVALIDATING
    yield clean(kind)[:200], clean(message)[:MESSAGE_LIMIT], valid


def _steps(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    steps = document.get("step_results")
    if steps is None:
        return []
    if not isinstance(steps, list) or len(steps) > _STEP_LIMIT or not all(isinstance(step, dict) for step in steps):
        raise InputError("is no list of steps.", field="step_results")
    return steps

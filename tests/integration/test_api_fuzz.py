"""The API against its own document: whatever is sent, no answer is a fault of the server's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from programs import TOKEN, Api, Program, free_port
from schemathesis.checks import not_a_server_error
from waiting import eventually

#: Requests to each operation.
EXAMPLES = 12
#: It would start real downloads, each a process that reaches for the net.
LEFT_OUT = {("POST", "/api/datasets/{name}/download")}
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An all-in-one with an evaluation to ask for."""
    folder, port = tmp_path_factory.mktemp("fuzz"), free_port()
    address = f"http://127.0.0.1:{port}"
    program = Program(["up", "--port", str(port), "--shared-root", str(folder / "data"), "--workers", "1"], folder)
    api = Api(address)
    try:
        eventually(api.healthy, 60, pause=0.1)
        eventually(lambda: api.get("/api/workers")["workers"], 60, pause=0.1)
        api.submit({"executor": "sleep", "name": "known", "trials": 3, "seconds": 0.1})
        yield address
    finally:
        api.close()
        program.destroy()


def test_no_answer_is_a_fault_of_the_server(url: str) -> None:
    document = schemathesis.openapi.from_url(f"{url}/api/openapi.json")
    tried = 0
    for found in document.get_all_operations():
        operation = found.ok()
        if (operation.method.upper(), operation.path) in LEFT_OUT:
            continue

        @given(case=operation.as_strategy())
        @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def attack(case: schemathesis.Case) -> None:
            case.call_and_validate(headers=AUTHORIZATION, checks=[not_a_server_error])

        attack()
        tried += 1
    assert tried >= 40

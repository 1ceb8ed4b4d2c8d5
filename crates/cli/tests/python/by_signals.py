"""A client in another language: Temporal's Python SDK, plain signals and queries, and nothing of tollgate's.

Started by crates/cli/tests/cli/python.rs with the group and the limit as arguments. The limit has a burst of 2.
"""

import asyncio
import os
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "python-jobs"
# What is waited for takes milliseconds; a busy machine may take longer.
PATIENCE = 30


@activity.defn(name="summarize")
async def summarize(number: int) -> int:
    return number * number


@workflow.defn(name="summaries")
class Summaries:
    """Takes a permit from the coordinator, works, and says what was used."""

    def __init__(self) -> None:
        self.answers: dict = {}

    @workflow.signal(name="granted")
    def granted(self, answer: dict) -> None:
        self.answers.setdefault(answer["id"], answer)

    @workflow.run
    async def run(self, group: str, limit: str, number: int) -> dict:
        coordinator = workflow.get_external_workflow_handle(f"tollgate/{group}")
        permit = {"id": str(workflow.uuid4()), "limit": limit}
        ask = {"client": workflow.info().workflow_id, "reply_to": workflow.info().workflow_id}
        await coordinator.signal("lease", {**permit, **ask, "lease_ms": 30_000})
        await workflow.wait_condition(lambda: permit["id"] in self.answers)
        answer = self.answers[permit["id"]]
        if answer["status"] != "granted":
            return answer
        result = await workflow.execute_activity(
            summarize,
            number,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        # The coordinator says how that ended, too.
        report = {**permit, "used": 1, "reply_to": workflow.info().workflow_id}
        self.answers.clear()
        await coordinator.signal("report", report)
        await workflow.wait_condition(lambda: permit["id"] in self.answers)
        return {**answer, "result": result, "how": self.answers[permit["id"]]["how"]}


async def grant_when(handle, permit: str, status: str) -> dict:
    """Waits until a permit stands like this."""
    for _ in range(PATIENCE * 50):
        seen = await handle.query("grants", {"id": permit})
        found = [grant for grant in seen["grants"] if grant["status"] == status]
        if found:
            return found[0]
        await asyncio.sleep(0.02)
    raise AssertionError(f"{permit} is not {status}: {seen}")


async def by_signals(client: Client, group: str, limit: str) -> None:
    """Leases, reports and revokes as a program does that can only signal and query."""
    handle = client.get_workflow_handle(f"tollgate/{group}")
    lease = {"client": "python", "limit": limit, "lease_ms": 60_000}
    await handle.signal("lease", {**lease, "id": "py-1"})
    granted = await grant_when(handle, "py-1", "granted")
    assert granted["client"] == "python" and granted["expires_us"] > granted["valid_until_us"], granted
    await handle.signal("lease", {**lease, "id": "py-2"})
    await grant_when(handle, "py-2", "granted")
    await handle.signal("lease", {**lease, "id": "py-3", "permits": 2})
    await grant_when(handle, "py-3", "waiting")
    await handle.signal("report", {"id": "py-1", "limit": limit, "used": 1})
    await grant_when(handle, "py-1", "used")
    # What is out counts as used, what waits gives its place up.
    await handle.signal("revoke", {"client": "python"})
    await grant_when(handle, "py-2", "used")
    await grant_when(handle, "py-3", "abandoned")
    rows = (await handle.query("status"))["limits"]
    assert [row["used"] for row in rows] == [2], rows


async def in_workflows(client: Client, group: str, limit: str) -> None:
    """More workflows than there are permits at once: all are served, in their turns."""
    jobs = [
        client.execute_workflow("summaries", args=[group, limit, number], id=f"summaries-{number}", task_queue=QUEUE)
        for number in range(5)
    ]
    done = await asyncio.gather(*jobs)
    for number, answer in enumerate(done):
        assert (answer["status"], answer["result"], answer["how"]) == ("granted", number * number, "used"), answer
        assert answer["valid_until_us"] == answer["granted_us"] + 30_000_000, answer
    refused = await client.execute_workflow(
        "summaries", args=[group, "paymnets", 1], id="summaries-refused", task_queue=QUEUE
    )
    assert (refused["status"], refused["reason"]) == ("refused", "unknown_limit"), refused


async def preload(client: Client, group: str, limit: str) -> None:
    """A permit as the result of a workflow, for clients that only start workflows."""

    async def outcome(name: str, **fields) -> dict:
        start = {"group": group, "limit": limit, **fields}
        return await client.execute_workflow("tollgate.preload", start, id=name, task_queue="tollgate")

    granted = await outcome("preload-granted", lease_ms=60_000, wait_ms=20_000)
    assert granted["status"] == "granted", granted
    refused = await outcome("preload-refused", cost=2, wait_ms=0)
    assert (refused["status"], refused["reason"]) == ("refused", "deadline"), refused
    handle = client.get_workflow_handle(f"tollgate/{group}")
    await handle.signal("report", {"id": granted["id"], "limit": limit, "used": 1})
    await grant_when(handle, granted["id"], "used")


async def main() -> None:
    group, limit = sys.argv[1:]
    client = await Client.connect(
        os.environ["TEMPORAL_ADDRESS"], namespace=os.environ["TEMPORAL_NAMESPACE"]
    )
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Summaries],
        activities=[summarize],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await by_signals(client, group, limit)
        await in_workflows(client, group, limit)
        await preload(client, group, limit)
    print("done", flush=True)
    # Threads of the SDK may call into the interpreter while it is taken down, which then ends with an error.
    os._exit(0)


asyncio.run(main())

"""What every store does with jobs."""

import asyncio

from antiphon.store.job_queue import OWNERS
from antiphon.store.records import (
    Lease,
    Paging,
    ResponseKind,
    ResponseStatus,
    Verdict,
)
from antiphon.store.store import JOBS, Store, cancel_of
from tests.store.samples import (
    NOW,
    OWNER,
    append,
    entry,
    items,
    job,
    leased,
    names,
    response,
    response_end,
    woken,
)


async def next_job(store: Store, now: float) -> str:
    (taken,) = await store.jobs.claim("w", now, 10, 1)
    return taken.id


class JobsContract:
    """Who works on what."""

    async def test_jobs_are_claimed_oldest_first(self, store: Store) -> None:
        for name, created in (("resp_b", 2.0), ("resp_a", 3.0), ("resp_c", 1.0)):
            await store.responses.create(job(name, created_at=created), ())
        await store.responses.create(response("front"), ())
        claimed = await store.jobs.claim("w", NOW, 10, 2)
        held = {"status": ResponseStatus.IN_PROGRESS, "lease": Lease("w", NOW + 10)}
        assert claimed == [job("resp_c", created_at=1.0, **held), job("resp_b", created_at=2.0, **held)]
        assert await store.responses.get(OWNER, "resp_c") == claimed[0]
        assert [record.id for record in await store.jobs.claim("v", NOW, 10, 2)] == ["resp_a"]
        assert await store.jobs.claim("v", NOW, 10, 2) == []

    async def test_the_owner_with_the_fewest_that_run_is_next(self, store: Store) -> None:
        """One owner's long queue does not delay another's job, whoever came first."""
        for index in range(40):
            await store.responses.create(job(f"many_{index:02}", owner="many", created_at=index), ())
        for index, owner in enumerate(("other", "another")):
            await store.responses.create(job(f"one_{index}", owner=owner, created_at=100.0), ())
        taken = [await next_job(store, NOW) for _ in range(4)]
        assert sorted(taken[:3]) == ["many_00", "one_0", "one_1"]
        assert taken[3] == "many_01"
        await store.responses.create(job("one_2", owner="other", created_at=200.0), ())
        assert await next_job(store, NOW) == "one_2"  # it has one that runs, the first has two
        assert await next_job(store, NOW + 10) in {"many_00", "one_0", "one_1"}  # leases that ran out

    async def test_only_some_kinds_are_claimed(self, store: Store) -> None:
        for at, kind in enumerate((ResponseKind.BATCH, ResponseKind.MESSAGE_BATCH, ResponseKind.RESPONSE)):
            await store.responses.create(job(kind, created_at=at, kind=kind), ())
        responses = frozenset({ResponseKind.RESPONSE})
        [taken] = await store.jobs.claim("w", NOW, 10, 3, responses)
        assert taken.kind is ResponseKind.RESPONSE
        assert await store.jobs.claim("w", NOW, 10, 3, responses) == []
        assert await store.jobs.claim("w", NOW, 10, 3, frozenset()) == []
        assert {record.kind for record in await store.jobs.claim("w", NOW, 10, 3)} == {
            ResponseKind.BATCH,
            ResponseKind.MESSAGE_BATCH,
        }

    async def test_batches_of_a_key_count_with_its_responses(self, store: Store) -> None:
        await store.responses.create(job("batch", owner="z", kind=ResponseKind.MESSAGE_BATCH), ())
        assert await next_job(store, NOW) == "batch"
        for owner in ("z", "zz"):
            await store.responses.create(job(owner, owner=owner), ())
        assert await next_job(store, NOW) == "zz"

    async def test_batches_of_a_key_take_turns_with_its_responses(self, store: Store) -> None:
        for number in range(3):
            batch = job(f"batch{number}", kind=ResponseKind.MESSAGE_BATCH, created_at=number)
            await store.responses.create(batch, ())
        for number in range(2):
            await store.responses.create(job(f"resp{number}", created_at=10 + number), ())
        taken = [await next_job(store, NOW) for _ in range(5)]
        assert taken == ["resp0", "batch0", "resp1", "batch1", "batch2"]

    async def test_owners_with_equally_many_take_turns(self, store: Store) -> None:
        for owner in "abc":
            for index in range(4):
                await store.responses.create(job(f"{owner}{index}", owner=owner, created_at=index), ())
        served = []
        for _ in range(12):
            taken = await next_job(store, NOW)
            assert await store.responses.finish(response_end(taken)) is Verdict.ACCEPTED
            served.append(taken)
        assert {len({each[0] for each in served[start : start + 3]}) for start in (0, 3, 6, 9)} == {3}
        assert [each for each in served if each[0] == "a"] == ["a0", "a1", "a2", "a3"]

    async def test_more_owners_than_a_claim_looks_at(self, store: Store) -> None:
        owners = [f"owner{index:03}" for index in range(2 * OWNERS + 1)]
        for owner in owners:
            for index in range(2):
                await store.responses.create(job(f"{owner}_{index}", owner=owner), ())
        served = [await next_job(store, NOW) for _ in range(4 * OWNERS + 2)]
        assert sorted(served[: len(owners)]) == [f"{owner}_0" for owner in owners]
        assert len(set(served)) == 2 * len(owners)
        assert await store.jobs.claim("w", NOW, 10, 1) == []

    async def test_each_job_is_claimed_once(self, store: Store) -> None:
        for index in range(30):
            await store.responses.create(job(f"resp_{index}"), ())
        claims = await asyncio.gather(*(store.jobs.claim(f"w{index}", NOW, 10, 4) for index in range(10)))
        taken = [record.id for claim in claims for record in claim]
        assert sorted(taken) == sorted(f"resp_{index}" for index in range(30))

    async def test_whether_there_are_jobs_is_known(self, store: Store) -> None:
        await store.responses.create(response("front"), ())
        assert not await store.jobs.any_background()
        await store.responses.create(job(), ())
        assert await store.jobs.any_background()
        await store.jobs.claim("w", NOW, 10, 1)
        assert await store.jobs.any_background()  # its lease may run out
        assert await store.responses.finish(response_end()) is Verdict.ACCEPTED
        assert not await store.jobs.any_background()

    async def test_a_lease_that_ran_out_is_taken_over(self, store: Store) -> None:
        await store.responses.create(job(), ())
        await store.jobs.claim("w", NOW, 10, 1)
        await store.log.append(append(entry(0, 4)))
        assert await store.jobs.claim("v", NOW + 9, 10, 1) == []
        # Late, but no other worker has claimed it: it is still the holder's.
        assert await store.log.append(append(entry(5))) == [Verdict.ACCEPTED]
        (taken,) = await store.jobs.claim("v", NOW + 10, 10, 1)
        assert (taken.lease, taken.last_seq) == (Lease("v", NOW + 20), 5)
        assert await store.log.append(append(entry(6))) == [Verdict.LOST]
        assert await store.responses.finish(response_end()) is Verdict.LOST
        assert await store.log.append(append(entry(6), worker="v")) == [Verdict.ACCEPTED]

    async def test_a_heartbeat_keeps_the_lease(self, store: Store) -> None:
        await store.responses.create(job(), ())
        await store.jobs.claim("w", NOW, 10, 1)
        beat = await store.jobs.heartbeat("w", ["resp_1"], NOW + 8, 10)
        assert (beat.lost, beat.cancelled) == (frozenset(), frozenset())
        assert await store.jobs.claim("v", NOW + 17, 10, 1) == []
        assert len(await store.jobs.claim("v", NOW + 18, 10, 1)) == 1

    async def test_a_heartbeat_tells_what_is_lost(self, store: Store) -> None:
        for name in ("kept", "taken", "ended", "deleted", "cancelled"):
            await store.responses.create(job(name), ())
        await store.jobs.claim("w", NOW, 10, 9)
        await store.jobs.heartbeat("w", ["kept", "cancelled"], NOW + 10, 10)
        await store.responses.finish(response_end("ended"))
        await store.responses.delete(OWNER, "deleted")
        assert len(await store.jobs.claim("v", NOW + 15, 10, 9)) == 1
        await store.jobs.request_cancel(OWNER, "cancelled", NOW)
        mine = ["kept", "taken", "ended", "deleted", "cancelled", "unknown"]
        for _ in range(2):
            beat = await store.jobs.heartbeat("w", mine, NOW + 15, 10)
            assert beat.lost == {"taken", "ended", "deleted", "unknown"}
            assert beat.cancelled == {"cancelled"}
        taken = await store.responses.get(OWNER, "taken")
        assert taken is not None
        assert taken.lease == Lease("v", NOW + 25)

    async def test_what_is_released_is_claimed_at_once(self, store: Store) -> None:
        await store.responses.create(job(), ())
        await store.jobs.claim("w", NOW, 10, 1)
        await store.jobs.release("v")
        assert await store.jobs.claim("v", NOW, 10, 1) == []
        await store.jobs.release("w")
        record = await store.responses.get(OWNER, "resp_1")
        assert record is not None
        assert (record.status, record.lease) == (ResponseStatus.IN_PROGRESS, None)
        assert await store.log.append(append(entry(0))) == [Verdict.LOST]
        assert len(await store.jobs.claim("v", NOW, 10, 1)) == 1

    async def test_deaths_of_an_engine_are_counted_by_who_holds_the_response(self, store: Store) -> None:
        await store.responses.create(job(), ())
        await store.jobs.claim("w", NOW, 10, 1)
        assert [await store.jobs.count_death("w", "resp_1") for _ in range(2)] == [1, 2]
        assert await store.jobs.count_death("v", "resp_1") == 0
        [record] = await store.jobs.claim("v", NOW + 10, 10, 1)
        assert record.engine_deaths == 2
        assert await store.jobs.count_death("v", "resp_1") == 3

    async def test_what_is_answered_in_the_foreground_is_not_released(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        await store.jobs.release("w")
        assert await store.jobs.claim_abandoned("v", NOW + 9, 10, 9, 0) == []

    async def test_nothing_to_claim_once_it_ended(self, store: Store) -> None:
        await store.responses.create(job(), ())
        await store.jobs.claim("w", NOW, 10, 1)
        await store.responses.finish(response_end())
        await store.jobs.release("w")
        assert await store.jobs.claim("v", NOW + 99, 10, 1) == []

    async def test_abandoned_foreground_responses(self, store: Store) -> None:
        await store.responses.create(leased("resp_1", created_at=2), ())
        await store.responses.create(leased("resp_2", created_at=1), ())
        await store.responses.create(response("unleased"), ())
        await store.responses.create(job("job"), ())
        assert await store.jobs.claim_abandoned("v", NOW + 9, 10, 9, 0) == []
        assert [record.id for record in await store.jobs.claim("v", NOW + 10, 5, 9)] == ["job"]
        found = await store.jobs.claim_abandoned("v", NOW + 10, 10, 9, 0)
        assert [record.id for record in found] == ["resp_2", "resp_1"]
        assert await store.responses.finish(response_end(worker="v")) is Verdict.ACCEPTED

    async def test_a_durable_stream_is_unread_after_its_time(self, store: Store) -> None:
        await store.responses.create(leased("durable", read_until=NOW + 5), ())
        await store.responses.create(leased("other"), ())

        async def unread(now: float) -> frozenset[str]:
            beat = await store.jobs.heartbeat("w", ["durable", "other"], now, 10)
            assert not beat.lost
            return beat.unread

        assert await unread(NOW + 5) == frozenset()
        assert await unread(NOW + 6) == {"durable"}
        await store.jobs.keep({"durable": NOW + 20, "other": NOW + 20, "unknown": NOW + 20})
        await store.jobs.keep({"durable": NOW + 7})  # another server has a reader, too
        await store.jobs.keep({})
        assert await unread(NOW + 20) == frozenset()
        assert await unread(NOW + 21) == {"durable"}

    async def test_a_durable_stream_can_be_claimed_like_those_that_are_abandoned(self, store: Store) -> None:
        await store.responses.create(leased("durable", read_until=NOW + 5), ())
        await store.log.append(append(entry(0, 4), name="durable"))
        assert await store.jobs.claim("v", NOW + 10, 10, 9) == []
        (taken,) = await store.jobs.claim_abandoned("v", NOW + 10, 10, 9, 0)
        assert (taken.id, taken.last_seq) == ("durable", 4)
        assert await store.log.append(append(entry(5), name="durable")) == [Verdict.LOST]

    async def test_the_time_without_a_server_is_not_one_without_a_reader(self, store: Store) -> None:
        """However often servers die: each takeover adds what passed since the last heartbeat, and no more."""
        await store.responses.create(leased("durable", read_until=NOW + 5), ())
        at, left = NOW, 5.0
        for worker in ("a", "b"):
            (taken,) = await store.jobs.claim_abandoned(worker, at + 30, 10, 9, at + 99)
            at += 30
            assert taken.read_until == at + left
            assert await store.responses.get(OWNER, "durable") == taken
            at, left = at + 2, left - 2
            await store.jobs.heartbeat(worker, ["durable"], at, 10)
        assert not (await store.jobs.heartbeat("b", ["durable"], at + 1, 10)).unread
        assert (await store.jobs.heartbeat("b", ["durable"], at + 2, 10)).unread == {"durable"}

    async def test_durable_streams_are_released(self, store: Store) -> None:
        await store.responses.create(leased("durable", read_until=NOW + 5), ())
        for until, kept in ((NOW + 1, NOW + 5), (NOW + 9, NOW + 9)):
            await store.jobs.release("w")
            (taken,) = await store.jobs.claim_abandoned("w", NOW, 10, 9, until)
            assert (taken.id, taken.read_until) == ("durable", kept)

    async def test_cancelling_is_idempotent(self, store: Store) -> None:
        await store.responses.create(job(), ())
        assert await store.jobs.request_cancel(OWNER, "unknown", NOW) is None
        cancelled = job(cancel_requested=True, cancel_requested_at=NOW)
        for later in range(2):
            assert await store.jobs.request_cancel(OWNER, "resp_1", NOW + later) == cancelled
        (claimed,) = await store.jobs.claim("w", NOW, 10, 1)
        assert claimed.cancel_requested

    async def test_cancelling_what_has_ended_changes_nothing(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        await store.responses.finish(response_end())
        before = await store.responses.get(OWNER, "resp_1")
        assert await store.jobs.request_cancel(OWNER, "resp_1", NOW) == before
        assert await store.responses.get(OWNER, "resp_1") == before

    async def test_a_successor_begins_when_the_first_has_ended(self, store: Store) -> None:
        await store.responses.create(job(created_at=NOW), ())
        await store.jobs.claim("w", NOW, 10, 1)
        following = job("resp_2", previous_id="resp_1", created_at=0.0)
        steered = await store.jobs.steer("resp_1", following, items("a"))
        assert steered is not None
        assert steered.successor_id == "resp_2"
        assert await store.responses.get(OWNER, "resp_1") == steered
        assert await store.responses.get(OWNER, "resp_2") == following
        assert names((await store.responses.input_items(OWNER, "resp_2", Paging())).data) == ["a"]
        assert await store.jobs.any_background()
        assert await store.jobs.claim("v", NOW + 9, 10, 9) == []
        (taken,) = await store.jobs.claim("v", NOW + 10, 10, 9)  # the first has lost its worker
        assert (taken.id, taken.successor_id) == ("resp_1", "resp_2")
        with store.watch(JOBS) as watch:
            assert await store.responses.finish(response_end(worker="w")) is Verdict.LOST
            assert await store.jobs.claim("v", NOW + 11, 10, 9) == []
            assert await store.responses.finish(response_end(worker="v")) is Verdict.ACCEPTED
            assert await woken(watch)
        (taken,) = await store.jobs.claim("v", NOW + 11, 10, 9)
        assert taken.id == "resp_2"
        # It runs now, whatever becomes of the first.
        assert await store.responses.delete(OWNER, "resp_1")
        assert await store.jobs.claim("u", NOW + 12, 10, 9) == []

    async def test_a_successor_begins_when_the_first_was_deleted(self, store: Store) -> None:
        await store.responses.create(job(), ())
        await store.jobs.claim("w", NOW, 10, 1)
        await store.jobs.steer("resp_1", job("resp_2"), ())
        assert await store.responses.delete(OWNER, "resp_1")
        assert [record.id for record in await store.jobs.claim("v", NOW, 10, 9)] == ["resp_2"]

    async def test_a_successor_may_end_or_be_deleted_before(self, store: Store) -> None:
        for number, name in enumerate(("resp_1", "resp_2")):
            await store.responses.create(job(name, created_at=number), ())
            await store.jobs.steer(name, job(f"next_{name}"), ())
        assert await store.responses.finish(response_end("next_resp_1", worker=None)) is Verdict.ACCEPTED
        assert await store.responses.delete(OWNER, "next_resp_2")
        assert len(await store.jobs.claim("w", NOW, 10, 9)) == 2
        for name in ("resp_1", "resp_2"):
            assert await store.responses.finish(response_end(name)) is Verdict.ACCEPTED
        assert await store.jobs.claim("w", NOW, 10, 9) == []

    async def test_what_is_not_steered(self, store: Store) -> None:
        """It has ended, or is steered already, or is nobody's: nothing is stored."""
        await store.responses.create(job(), ())
        assert await store.jobs.steer("unknown", job("resp_2"), ()) is None
        assert await store.jobs.steer("resp_1", job("resp_2", owner="eve"), ()) is None
        await store.jobs.steer("resp_1", job("resp_3"), ())
        again = await store.jobs.steer("resp_1", job("resp_2"), ())
        assert again is not None
        assert again.successor_id == "resp_3"
        await store.jobs.claim("w", NOW, 10, 1)
        assert await store.responses.finish(response_end()) is Verdict.ACCEPTED
        ended = await store.jobs.steer("resp_1", job("resp_2"), ())
        assert ended is not None
        assert ended.status is ResponseStatus.COMPLETED
        assert await store.responses.get(OWNER, "resp_2") is None

    async def test_a_successor_that_is_not_stored_yet_is_announced(self, store: Store) -> None:
        """Once, to whoever has the first; nothing waits for its end, and the successor is stored like any other."""
        await store.responses.create(leased("durable", read_until=NOW + 5), ())
        with store.watch(cancel_of("durable")) as watch:
            await store.jobs.announce_successor("durable", "resp_2")
            assert await woken(watch)
        await store.jobs.announce_successor("durable", "resp_3")
        (taken,) = await store.jobs.claim_abandoned("v", NOW + 10, 10, 9, 0)
        assert taken.successor_id == "resp_2"
        assert (await store.jobs.heartbeat("v", ["durable"], NOW + 10, 10)).steered == {"durable"}
        assert await store.responses.finish(response_end("durable", worker="v")) is Verdict.ACCEPTED
        await store.responses.create(leased("resp_2"), ())
        await store.jobs.announce_successor("durable", "resp_4")
        assert await store.responses.delete(OWNER, "durable")
        assert (await store.jobs.heartbeat("w", ["resp_2"], NOW, 10)).lost == frozenset()

    async def test_a_heartbeat_tells_what_was_steered(self, store: Store) -> None:
        await store.responses.create(job(), ())
        await store.jobs.claim("w", NOW, 10, 1)
        with store.watch(cancel_of("resp_1")) as watch:
            await store.jobs.steer("resp_1", job("resp_2"), ())
            assert await woken(watch)
        for _ in range(2):
            beat = await store.jobs.heartbeat("w", ["resp_1"], NOW, 10)
            assert (beat.lost, beat.cancelled, beat.steered) == (frozenset(), frozenset(), {"resp_1"})

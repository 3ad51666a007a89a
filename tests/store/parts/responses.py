"""What every store does with responses and their chains."""

import asyncio
from functools import partial
from random import Random

import pytest

from antiphon.core.errors import NotFoundError, RequestError, StoreError
from antiphon.store.records import (
    ItemRecord,
    Paging,
    ResponseKind,
    ResponseStatus,
    ResponseSummary,
    Verdict,
)
from antiphon.store.responses import LOOKED_UP
from antiphon.store.store import Store
from tests.store.parts.pages import check_pages
from tests.store.samples import (
    NOW,
    OWNER,
    TERMINAL,
    Opener,
    append,
    completion,
    conversation,
    ended,
    entry,
    item,
    items,
    job,
    leased,
    names,
    response,
    response_end,
)


def links(chains: dict[str, list[str]], name: str) -> list[str]:
    """The responses before this one, the newest first; the first entry of each is the one before it."""
    found = []
    while name := chains[name][0]:
        found.append(name)
    return found


class ResponsesContract:
    """Responses and their items."""

    async def test_what_was_created_is_there(self, store: Store) -> None:
        record = leased(
            previous_id="resp_0", prompt_ids=b"\x01\x00\x00\x00", expires_at=NOW + 0.25, created_at=NOW + 0.5
        )
        assert await store.responses.get(OWNER, record.id) is None
        await store.responses.create(record, items("a"))
        assert await store.responses.get(OWNER, record.id) == record

    async def test_many_created_at_once_are_all_there(self, store: Store) -> None:
        records = [response(f"resp_{index}") for index in range(50)]
        await asyncio.gather(*(store.responses.create(record, items(record.id)) for record in records))
        for record in records:
            assert await store.responses.get(OWNER, record.id) == record
            assert names(await store.responses.history(OWNER, record.id)) == [record.id]

    async def test_pages_of_responses(self, store: Store) -> None:
        for name, created in (("b", 1), ("d", 3), ("a", 1), ("c", 2), ("e", 3)):
            await store.responses.create(response(name, created_at=created), ())
        await store.responses.create(response("other", owner="eve"), ())
        await check_pages(lambda paging: store.responses.page(OWNER, ResponseKind.RESPONSE, paging), "abcde")

    async def test_what_is_of_another_kind_is_not_found(self, store: Store) -> None:
        batch, kind = job("batch", kind=ResponseKind.MESSAGE_BATCH), ResponseKind.MESSAGE_BATCH
        for record in (batch, ended()):
            await store.responses.create(record, ())
        assert await store.responses.get(OWNER, "batch", kind) == batch
        assert (await store.responses.page(OWNER, kind, Paging())).data == [batch]
        assert [each.id for each in (await store.responses.summaries(OWNER, None, Paging())).data] == [
            "resp_1"
        ]
        assert await store.responses.get(OWNER, "batch") is None
        assert await store.responses.get(OWNER, "resp_1", kind) is None
        assert not await store.responses.delete(OWNER, "batch")
        for read in (
            store.responses.history(OWNER, "batch"),
            store.responses.input_items(OWNER, "batch", Paging()),
        ):
            with pytest.raises(NotFoundError):
                await read
        assert await store.responses.delete(OWNER, "batch", kind)
        assert await store.responses.get(OWNER, "batch", kind) is None

    async def test_lists_of_responses(self, store: Store) -> None:
        for name, created in (("b", 1), ("d", 3), ("a", 1), ("c", 2), ("e", 3)):
            await store.responses.create(response(name, created_at=created), ())
        await store.responses.create(response("other", owner="eve"), ())
        for background in (None, response("a").background):
            await check_pages(
                lambda paging, only=background: store.responses.summaries(OWNER, only, paging), "abcde"
            )
        assert not (await store.responses.summaries(OWNER, not response("a").background, Paging())).data
        [first] = (await store.responses.summaries(OWNER, None, Paging(limit=1))).data
        known = response("e", created_at=3)
        assert first == ResponseSummary("e", 3, known.status, known.model, known.background)

    async def test_another_owners_response_does_not_exist(self, store: Store) -> None:
        await store.responses.create(leased(), items("a"))
        await store.log.append(append(entry(0)))
        assert await store.responses.get("eve", "resp_1") is None
        assert await store.log.events_after("eve", "resp_1", -1) is None
        assert await store.jobs.request_cancel("eve", "resp_1", NOW) is None
        assert not await store.responses.delete("eve", "resp_1")
        with pytest.raises(NotFoundError):
            await store.responses.input_items("eve", "resp_1", Paging())
        with pytest.raises(NotFoundError):
            await store.responses.history("eve", "resp_1")
        assert await store.responses.get(OWNER, "resp_1") == leased(last_seq=0)

    async def test_writes_happen_in_the_order_of_their_calls(self, store: Store) -> None:
        _, (appended,), finished, deleted = await asyncio.gather(
            store.responses.create(leased(), items("a")),
            store.log.append(append(entry(0))),
            store.responses.finish(response_end(entries=(entry(1),))),
            store.responses.delete(OWNER, "resp_1"),
        )
        assert (appended, finished, deleted) == (Verdict.ACCEPTED, Verdict.ACCEPTED, True)

    async def test_an_id_is_taken_once(self, store: Store) -> None:
        await store.responses.create(response(), items("a"))
        with pytest.raises(StoreError):
            await store.responses.create(response(model="other"), items("b"))
        assert await store.responses.get(OWNER, "resp_1") == response()
        assert names(await store.responses.history(OWNER, "resp_1")) == ["a"]

    async def test_a_refused_write_does_not_hurt_its_neighbours(self, store: Store) -> None:
        await store.responses.create(response("resp_3"), [])
        results = await asyncio.gather(
            *(store.responses.create(response(f"resp_{index}"), items("a")) for index in range(6)),
            store.responses.create(response("resp_6", model="\0"), ()),
            return_exceptions=True,
        )
        assert [type(result) for index, result in enumerate(results) if index != 3] == [
            *[type(None)] * 5,
            RequestError,
        ]
        assert isinstance(results[3], StoreError)
        for index in (0, 1, 2, 4, 5):
            assert await store.responses.get(OWNER, f"resp_{index}")

    @pytest.mark.parametrize("text", ["\0", "a\ud800"])
    async def test_text_that_no_database_holds_is_refused(self, store: Store, text: str) -> None:
        with pytest.raises(RequestError):
            await store.responses.get(OWNER, text)
        with pytest.raises(RequestError):
            await store.completions.save(completion(metadata={"a": text}), [])

    async def test_it_needs_its_conversation(self, store: Store) -> None:
        await store.conversations.create(conversation(owner="eve"), [])
        for missing in ("conv_1", "conv_2"):
            with pytest.raises(NotFoundError) as caught:
                await store.responses.create(response(conversation_id=missing), items("a"))
            assert caught.value.param == "conversation"
        assert await store.responses.get(OWNER, "resp_1") is None

    async def test_a_saved_response_is_one_that_has_ended(self, store: Store) -> None:
        await store.responses.save(ended("resp_0"), items("a"), items("b"))
        record = ended(previous_id="resp_0", conversation_id="conv_1", expires_at=NOW + 1, prompt_ids=b"p")
        await store.conversations.create(conversation(), items("x"))
        await store.responses.save(record, items("c", "d"), (item("e", tokens=b"\x07"),))
        assert await store.responses.get(OWNER, "resp_1") == record
        saved = [*items("a", "b", "c", "d"), item("e", tokens=b"\x07")]
        assert await store.responses.history(OWNER, "resp_1") == saved
        assert await store.conversations.history(OWNER, "conv_1") == [*items("x"), *saved[2:]]
        assert (await store.responses.input_items(OWNER, "resp_1", Paging("asc"))).data == saved[2:4]
        assert await store.responses.finish(response_end(worker=None)) is Verdict.ENDED
        assert await store.log.append(append(entry(0), worker=None)) == [Verdict.ENDED]
        assert await store.jobs.claim_abandoned("w", NOW + 99, 10, 9, 0) == []
        assert await store.responses.delete(OWNER, "resp_1")
        assert await store.responses.items(OWNER, ["c", "d", "e"]) != {}  # the conversation keeps them

    async def test_many_saved_at_once(self, store: Store) -> None:
        await store.conversations.create(conversation(), ())
        records = [ended(f"resp_{index}", conversation_id="conv_1") for index in range(30)]
        results = await asyncio.gather(
            *(
                store.responses.save(record, items(f"in {record.id}"), items(f"out {record.id}"))
                for record in (*records, records[3], ended("resp_x", conversation_id="conv_2"))
            ),
            return_exceptions=True,
        )
        assert results[:30] == [None] * 30
        assert [type(result) for result in results[30:]] == [StoreError, NotFoundError]
        expected = [f"{way} resp_{index}" for index in range(30) for way in ("in", "out")]
        assert names(await store.conversations.history(OWNER, "conv_1")) == expected
        assert await store.responses.get(OWNER, "resp_29") == records[29]
        assert await store.responses.get(OWNER, "resp_x") is None

    async def test_what_is_saved_needs_its_conversation(self, store: Store) -> None:
        await store.conversations.create(conversation(owner="eve"), [])
        for missing in ("conv_1", "conv_2"):
            with pytest.raises(NotFoundError) as caught:
                await store.responses.save(ended(conversation_id=missing), items("a"), items("b"))
            assert caught.value.param == "conversation"
        assert await store.responses.get(OWNER, "resp_1") is None
        assert await store.responses.items(OWNER, ["a", "b"]) == {}
        assert names(await store.conversations.history("eve", "conv_1")) == []

    async def test_deleting(self, store: Store) -> None:
        await store.responses.create(leased(), items("a"))
        await store.log.append(append(entry(0)))
        assert await store.responses.delete(OWNER, "resp_1")
        assert not await store.responses.delete(OWNER, "resp_1")
        assert await store.responses.get(OWNER, "resp_1") is None
        assert await store.log.read("resp_1") == []
        assert await store.log.append(append(entry(1))) == [Verdict.GONE]
        assert await store.responses.finish(response_end()) is Verdict.GONE
        await store.responses.create(leased(), items("b"))
        assert names(await store.responses.history(OWNER, "resp_1")) == ["b"]

    async def test_finishing(self, store: Store) -> None:
        await store.responses.create(leased(), items("a"))
        await store.log.append(append(entry(0, 3)))
        end = response_end(
            output=(item("b", tokens=b"\x07\x00\x00\x00"), *items("c")), entries=(entry(4), entry(5, 6))
        )
        assert await store.responses.finish(end) is Verdict.ACCEPTED
        ended = response(status=ResponseStatus.COMPLETED, body=end.body, last_seq=6)
        assert await store.responses.get(OWNER, "resp_1") == ended
        assert await store.responses.history(OWNER, "resp_1") == [item("a"), *end.output]
        assert await store.log.read("resp_1") == [entry(0, 3), entry(4), entry(5, 6)]
        assert names((await store.responses.input_items(OWNER, "resp_1", Paging())).data) == ["a"]

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_a_terminal_status_is_never_overwritten(self, store: Store, status: ResponseStatus) -> None:
        await store.responses.create(leased(), ())
        assert await store.responses.finish(response_end(status=status, body=b"first")) is Verdict.ACCEPTED
        for other in TERMINAL:
            for worker in ("w", None):
                late = response_end(
                    status=other, worker=worker, body=b"late", output=items("z"), entries=(entry(0),)
                )
                assert await store.responses.finish(late) is Verdict.ENDED
        assert await store.log.append(append(entry(0), prompt_ids=b"late")) == [Verdict.ENDED]
        ended = await store.responses.get(OWNER, "resp_1")
        assert ended is not None
        assert (ended.status, ended.body, ended.last_seq) == (status, b"first", -1)
        assert await store.responses.history(OWNER, "resp_1") == []

    async def test_of_several_ends_at_once_one_counts(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        ends = [
            response_end(status=status, body=status.encode(), output=items(status)) for status in TERMINAL
        ]
        verdicts = await asyncio.gather(*map(store.responses.finish, ends))
        assert sorted(verdicts) == [Verdict.ACCEPTED] + [Verdict.ENDED] * 3
        winner = ends[verdicts.index(Verdict.ACCEPTED)]
        record = await store.responses.get(OWNER, "resp_1")
        assert record is not None
        assert (record.status, record.body) == (winner.status, winner.body)
        assert names(await store.responses.history(OWNER, "resp_1")) == [winner.status]

    async def test_only_the_holder_of_the_lease_ends_it(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        await store.responses.create(job("resp_2"), ())
        for worker in ("v", None):
            assert await store.responses.finish(response_end(worker=worker)) is Verdict.LOST
        assert await store.responses.finish(response_end("resp_2", worker="w")) is Verdict.LOST
        assert await store.responses.get(OWNER, "resp_1") == leased()
        assert await store.responses.finish(response_end("resp_2", worker=None)) is Verdict.ACCEPTED
        assert await store.responses.finish(response_end()) is Verdict.ACCEPTED

    async def test_an_end_with_a_gap_changes_nothing(self, store: Store) -> None:
        await store.responses.create(leased(), items("a"))
        assert (
            await store.responses.finish(response_end(entries=(entry(1),), output=items("b"))) is Verdict.GAP
        )
        assert await store.responses.get(OWNER, "resp_1") == leased()
        assert names(await store.responses.history(OWNER, "resp_1")) == ["a"]

    async def test_the_end_reaches_the_conversation(self, store: Store) -> None:
        await store.conversations.create(conversation(), items("a"))
        await store.responses.create(leased(conversation_id="conv_1"), items("b"))
        assert names(await store.conversations.history(OWNER, "conv_1")) == ["a"]
        end = response_end(output=items("c"), conversation=items("b", "c"))
        await store.responses.finish(end)
        assert await store.responses.finish(end) is Verdict.ENDED
        assert names(await store.conversations.history(OWNER, "conv_1")) == ["a", "b", "c"]
        await store.responses.delete(OWNER, "resp_1")
        assert names(await store.conversations.history(OWNER, "conv_1")) == ["a", "b", "c"]

    async def test_a_conversation_that_is_gone_does_not_stop_the_end(self, store: Store) -> None:
        await store.conversations.create(conversation(), ())
        await store.responses.create(leased(conversation_id="conv_1"), items("b"))
        await store.conversations.delete(OWNER, "conv_1")
        assert await store.responses.finish(response_end(conversation=items("b"))) is Verdict.ACCEPTED
        await store.conversations.create(conversation(), ())
        assert await store.conversations.history(OWNER, "conv_1") == []

    async def test_pages_of_input_items(self, store: Store) -> None:
        await store.responses.create(leased(), items(*"abcdef"))
        await store.responses.create(response("resp_2"), items("other"))
        await store.responses.finish(response_end(output=items("z")))
        await check_pages(lambda paging: store.responses.input_items(OWNER, "resp_1", paging), "abcdef")

    async def test_an_item_with_the_id_of_another_gets_one_of_its_own(self, store: Store) -> None:
        given = [item("msg_1", payload=b'{"type":"message","id":"msg_1","text":"%d"}' % n) for n in range(3)]
        await store.responses.create(response(), [*given, *items("b")])
        await store.conversations.create(conversation(), given[:2])
        await store.conversations.add(OWNER, "conv_1", given)
        pages = {
            "resp_1": partial(store.responses.input_items, OWNER, "resp_1"),
            "conv_1": partial(store.conversations.items, OWNER, "conv_1"),
        }
        for parent, read in pages.items():
            for order in ("asc", "desc"):
                found: list[ItemRecord] = []
                while (
                    page := await read(Paging(order, limit=2, after=found[-1].id if found else None))
                ).data:
                    found += page.data
                    if not page.has_more:
                        break
                ids = names(found)
                assert len({*ids}) == len(ids) == {"resp_1": 4, "conv_1": 5}[parent]
                assert ids.count("msg_1") == 1
                assert all(
                    b'"id":"%b"' % each.id.encode() in each.payload for each in found if each.id != "b"
                )


class ItemsContract:
    """Items by their ids, wherever they are."""

    async def test_items_of_responses_and_conversations(self, store: Store) -> None:
        await store.responses.create(leased(), items("a", "b"))
        await store.responses.finish(response_end(output=items("c")))
        await store.conversations.create(conversation(), items("d"))
        await store.conversations.add(OWNER, "conv_1", items("e"))
        assert await store.responses.items(OWNER, ["a", "c", "d", "e"]) == {
            name: item(name).payload for name in "acde"
        }

    async def test_items_that_there_are_not_are_left_out(self, store: Store) -> None:
        await store.responses.create(response(), items("a"))
        assert await store.responses.items(OWNER, []) == {}
        assert await store.responses.items(OWNER, ["b"]) == {}
        assert await store.responses.items(OWNER, {"a", "b", ""}) == {"a": item("a").payload}

    async def test_items_of_others_are_none(self, store: Store) -> None:
        theirs = item("c", payload=b"theirs")
        await store.responses.create(response(owner="eve"), [*items("a"), theirs])
        await store.conversations.create(conversation(owner="eve"), [*items("b"), theirs])
        assert await store.responses.items(OWNER, ["a", "b", "c"]) == {}
        await store.responses.create(response("resp_2"), items("c"))
        assert await store.responses.items(OWNER, ["a", "b", "c"]) == {"c": item("c").payload}
        assert len(await store.responses.items("eve", ["a", "b", "c"])) == 3

    async def test_messages_of_completions_are_no_items(self, store: Store) -> None:
        await store.completions.save(completion(), items("a"))
        assert await store.responses.items(OWNER, ["a"]) == {}

    async def test_deleted_items_are_gone(self, store: Store) -> None:
        await store.responses.create(response(), items("a"))
        await store.conversations.create(conversation(), items("b", "c", "d"))
        await store.responses.delete(OWNER, "resp_1")
        await store.conversations.delete_item(OWNER, "conv_1", "b")
        assert [*await store.responses.items(OWNER, [*"abc"])] == ["c"]
        await store.conversations.delete(OWNER, "conv_1")
        assert await store.responses.items(OWNER, [*"abcd"]) == {}

    async def test_an_item_that_is_in_many_places(self, store: Store) -> None:
        await store.responses.create(response(), items("a", "a"))
        await store.conversations.create(conversation(), items("a"))
        assert await store.responses.items(OWNER, ["a", "a"]) == {"a": item("a").payload}
        await store.responses.delete(OWNER, "resp_1")
        assert await store.responses.items(OWNER, ["a"]) == {"a": item("a").payload}

    async def test_many_items_at_once(self, store: Store) -> None:
        wanted = [f"item_{index}" for index in range(20 * LOOKED_UP + 1)]
        await store.responses.create(response(), items(*wanted[:300], "other"))
        found = await store.responses.items(OWNER, wanted)
        assert found == {name: item(name).payload for name in wanted[:300]}
        assert LOOKED_UP < 999  # the least that a database takes as parameters: SQLite's before 3.32


class ChainsContract:
    """Histories."""

    async def test_the_history_is_the_chain_oldest_first(self, store: Store) -> None:
        for index in range(3):
            previous = f"resp_{index - 1}" if index else None
            await store.responses.create(leased(f"resp_{index}", previous_id=previous), items(f"in{index}"))
            await store.responses.finish(response_end(f"resp_{index}", output=items(f"out{index}")))
        await store.responses.create(response("fork", previous_id="resp_0"), items("in", "also in"))
        chain = ["in0", "out0", "in1", "out1", "in2", "out2"]
        assert names(await store.responses.history(OWNER, "resp_2")) == chain
        assert names(await store.responses.history(OWNER, "fork")) == ["in0", "out0", "in", "also in"]

    async def test_responses_without_items_do_not_break_a_chain(self, store: Store) -> None:
        await store.responses.create(response("resp_1"), items("a"))
        await store.responses.create(response("resp_2", previous_id="resp_1"), ())
        await store.responses.create(response("resp_3", previous_id="resp_2"), ())
        assert names(await store.responses.history(OWNER, "resp_3")) == ["a"]

    @pytest.mark.parametrize("gone", ["resp_0", "resp_1", "resp_2"])
    async def test_a_missing_link_is_named(self, store: Store, gone: str) -> None:
        for index in range(3):
            previous = f"resp_{index - 1}" if index else None
            await store.responses.create(response(f"resp_{index}", previous_id=previous), items("a"))
        await store.responses.delete(OWNER, gone)
        with pytest.raises(NotFoundError, match=gone) as caught:
            await store.responses.history(OWNER, "resp_2")
        assert (caught.value.param, caught.value.code) == (
            "previous_response_id",
            "previous_response_not_found",
        )

    @pytest.mark.parametrize("known", [3000, 10**6])
    @pytest.mark.parametrize("seed", range(2))
    async def test_a_history_is_what_is_stored_now(self, opened: Opener, seed: int, known: int) -> None:
        """Of responses that run, have ended, or were deleted, read in any order by any owner."""
        store, dice = await opened(known_item_bytes=known), Random(seed)
        chains: dict[str, list[str]] = {}
        running: dict[str, list[str]] = {}
        gone: set[str] = set()
        for number in range(60):
            match dice.choice(("create", "create", "finish", "delete", "read", "read", "read", "read")):
                case "create":
                    previous = dice.choice([None, *chains])
                    if previous is not None and ({previous, *links(chains, previous)} & gone):
                        continue
                    name = f"resp_{number}"
                    said = items(*(f"in_{number}_{index}" for index in range(dice.randrange(3))))
                    await store.responses.create(leased(name, previous_id=previous), said)
                    chains[name] = [previous or "", *names(said)]
                    running[name] = []
                case "finish" if running:
                    name = dice.choice([*running])
                    output = items(*(f"out_{number}_{index}" for index in range(dice.randrange(3))))
                    await store.responses.finish(response_end(name, output=output))
                    chains[name] += names(output)
                    del running[name]
                case "delete" if chains and not dice.randrange(3):
                    name = dice.choice([*chains])
                    await store.responses.delete(OWNER, name)
                    gone.add(name)
                    running.pop(name, None)
                case "read" if chains:
                    name = dice.choice([*chains])
                    with pytest.raises(NotFoundError):
                        await store.responses.history("eve", name)
                    if {name, *links(chains, name)} & gone:
                        with pytest.raises(NotFoundError):
                            await store.responses.history(OWNER, name)
                        continue
                    expected = [
                        said for each in (*reversed(links(chains, name)), name) for said in chains[each][1:]
                    ]
                    assert names(await store.responses.history(OWNER, name)) == expected

    @pytest.mark.parametrize("known", [0, 10**6])
    @pytest.mark.parametrize("room", [3000, 2999])
    async def test_a_history_has_a_limit_also_if_it_is_known(
        self, opened: Opener, room: int, known: int
    ) -> None:
        store = await opened(history_bytes=room, known_item_bytes=known)
        for index in range(3):
            previous = f"resp_{index - 1}" if index else None
            record = leased(f"resp_{index}", previous_id=previous)
            await store.responses.create(record, [item("a", payload=b"1" * 1000)])
            await store.responses.finish(response_end(record.id))
        for _ in range(2):
            assert len(await store.responses.history(OWNER, "resp_1")) == 2
            if room == 3000:
                assert len(await store.responses.history(OWNER, "resp_2")) == 3
            else:
                with pytest.raises(RequestError, match="history_bytes"):
                    await store.responses.history(OWNER, "resp_2")

    async def test_another_owners_link_is_missing(self, store: Store) -> None:
        await store.responses.create(response("resp_1", owner="eve"), items("secret"))
        await store.responses.create(response("resp_2", previous_id="resp_1"), items("a"))
        with pytest.raises(NotFoundError, match="resp_1"):
            await store.responses.history(OWNER, "resp_2")

    async def test_a_chain_has_a_limit(self, opened: Opener) -> None:
        store = await opened(chain=3)
        for index in range(4):
            previous = f"resp_{index - 1}" if index else None
            await store.responses.create(response(f"resp_{index}", previous_id=previous), items(f"{index}"))
        assert names(await store.responses.history(OWNER, "resp_2")) == ["0", "1", "2"]
        with pytest.raises(RequestError, match="More than 3"):
            await store.responses.history(OWNER, "resp_3")

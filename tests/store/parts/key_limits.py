"""What every store does with the limits of keys that servers share."""

import asyncio

from antiphon.core.shared_limits import Question
from antiphon.store.store import Store
from tests.store.samples import NOW, OWNER


def asked(least: float, most: float | None = None, settle: float = 0, limit: int = 600) -> Question:
    return Question(OWNER, "tokens", limit, settle, least, least if most is None else most)


class KeyLimitsContract:
    """No more is lent than the limit, and places are held for a time."""

    async def test_no_more_is_lent_than_the_limit(self, store: Store) -> None:
        first = await store.key_limits.take("a", asked(600))
        assert first.amount == 600
        refused = await store.key_limits.take("b", asked(100))
        assert (refused.amount, refused.servers) == (0, 2)
        assert 0 <= refused.left < 100

    async def test_what_is_given_back_is_lent_again(self, store: Store) -> None:
        await store.key_limits.take("a", asked(600))
        again = await store.key_limits.take("b", asked(300, settle=-400))
        assert again.amount == 300
        assert 100 <= again.left < 150

    async def test_what_was_used_without_a_lease_is_missing(self, store: Store) -> None:
        await store.key_limits.take("a", asked(0, settle=1200))
        assert -600 <= (await store.key_limits.take("b", asked(1))).left < -550

    async def test_a_lease_in_advance_leaves_some_for_others(self, store: Store) -> None:
        assert (await store.key_limits.take("a", asked(0, 75))).amount == 75
        assert (await store.key_limits.take("b", asked(500))).amount == 500
        assert 12 <= (await store.key_limits.take("c", asked(0, 75))).amount < 75

    async def test_limits_are_of_their_owner_and_kind(self, store: Store) -> None:
        for owner, kind in ((OWNER, "tokens"), (OWNER, "requests"), ("somebody else", "tokens")):
            assert (await store.key_limits.take("a", Question(owner, kind, 1, 0, 1, 1))).amount == 1

    async def test_servers_that_ask_at_once_get_the_limit_together(self, store: Store) -> None:
        asking = [store.key_limits.take(f"s{index % 3}", asked(50)) for index in range(40)]
        lent = sum(taken.amount for taken in await asyncio.gather(*asking))
        assert 600 <= lent <= 650  # some is refilled meanwhile

    async def test_places_are_held_together(self, store: Store) -> None:
        hold = store.key_limits.hold
        assert (await hold("a", OWNER, 5, 3, 60)).places == 3
        held = await hold("b", OWNER, 5, 3, 60)
        assert (held.places, held.left, held.servers) == (2, 0, 2)
        assert (await hold("b", "somebody else", 5, 5, 60)).places == 5
        assert (await hold("a", OWNER, 5, 1, 60)).places == 1
        assert (await hold("b", OWNER, 5, 5, 60)).places == 4
        assert (await hold("c", OWNER, 5, 1, 60)).places == 0
        await hold("a", OWNER, 5, 0, 60)
        assert (await hold("c", OWNER, 5, 2, 60)).places == 1

    async def test_places_of_a_server_that_died_come_back(self, store: Store) -> None:
        assert (await store.key_limits.hold("dead", OWNER, 2, 2, 0)).places == 2
        assert (await store.key_limits.hold("a", OWNER, 2, 2, 60)).places == 2

    async def test_a_server_that_stops_is_forgotten(self, store: Store) -> None:
        hold = store.key_limits.hold
        assert (await hold("a", OWNER, 2, 2, 60)).places == 2
        await store.key_limits.leave("a")
        held = await hold("b", OWNER, 2, 1, 60)
        assert (held.places, held.left, held.servers) == (1, 1, 1)

    async def test_rows_without_effect_are_forgotten(self, store: Store) -> None:
        await store.key_limits.take("a", asked(0, settle=10**6))
        await store.sweep(NOW)  # long ago
        assert (await store.key_limits.take("a", asked(1))).amount == 0

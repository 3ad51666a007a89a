"""What every store does with requests for an approval that were answered."""

import asyncio

from antiphon.store.store import Store
from tests.store.samples import NOW, OWNER

LATER = NOW + 60


class ApprovalsContract:
    """Each request is answered once."""

    async def test_a_request_is_claimed_for_one_response(self, store: Store) -> None:
        assert await store.approvals.claim(OWNER, "mcpr_1", "resp_1", LATER)
        assert await store.approvals.claim(OWNER, "mcpr_1", "resp_1", LATER)  # as when it is run again
        assert not await store.approvals.claim(OWNER, "mcpr_1", "resp_2", LATER)
        assert await store.approvals.claim(OWNER, "mcpr_2", "resp_2", LATER)

    async def test_of_several_at_once_one_claims_it(self, store: Store) -> None:
        claims = [store.approvals.claim(OWNER, "mcpr_1", f"resp_{index}", LATER) for index in range(8)]
        assert (await asyncio.gather(*claims)).count(True) == 1

    async def test_a_claim_is_its_owners(self, store: Store) -> None:
        assert await store.approvals.claim(OWNER, "mcpr_1", "resp_1", LATER)
        assert await store.approvals.claim("somebody else", "mcpr_1", "resp_2", LATER)
        assert not await store.approvals.claim(OWNER, "mcpr_1", "resp_2", LATER)

    async def test_a_claim_is_forgotten_when_it_has_expired(self, store: Store) -> None:
        for name, expires_at in (("early", NOW), ("late", NOW + 1)):
            assert await store.approvals.claim(OWNER, name, "resp_1", expires_at)
        await store.sweep(NOW)
        assert await store.approvals.claim(OWNER, "early", "resp_2", LATER)
        assert not await store.approvals.claim(OWNER, "late", "resp_2", LATER)

"""The store on a SQL database: its parts, put together."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from antiphon.core.limits import Limits
from antiphon.core.permits import Permits
from antiphon.store.approvals import SqlApprovals
from antiphon.store.blobs import SqlBlobs
from antiphon.store.completions import SqlCompletions
from antiphon.store.containers import SqlContainers
from antiphon.store.conversations import SqlConversations
from antiphon.store.database import Backend, Database
from antiphon.store.files import SqlFiles
from antiphon.store.jobs import SqlJobs
from antiphon.store.key_limits import SqlKeyLimits
from antiphon.store.log import SqlLog
from antiphon.store.records import StoreTuning, SweepResult
from antiphon.store.replicas import SqlReplicas
from antiphon.store.responses import SqlResponses
from antiphon.store.store import Watch
from antiphon.store.sweep import sweep
from antiphon.store.usage import SqlStorageUsage
from antiphon.store.vector_stores import SqlVectorStores
from antiphon.store.watch import WatchesElsewhere


async def open_sql(backend: Backend, limits: Limits, tuning: StoreTuning) -> "SqlStore":
    """The store on a database, with its tables migrated. Raises StoreError."""
    store = SqlStore(backend, limits, tuning)
    await store.open()
    return store


class SqlStore:
    """`Store`, on any backend."""

    def __init__(self, backend: Backend, limits: Limits, tuning: StoreTuning) -> None:
        self._database = Database(backend, limits, tuning)
        self.responses = SqlResponses(self._database)
        self.log = SqlLog(self._database)
        self.jobs = SqlJobs(self._database)
        self.conversations = SqlConversations(self._database)
        self.completions = SqlCompletions(self._database)
        self.blobs = SqlBlobs(self._database)
        self.files = SqlFiles(self._database)
        self.containers = SqlContainers(self._database)
        self.vector_stores = SqlVectorStores(self._database)
        self.approvals = SqlApprovals(self._database)
        self.key_limits = SqlKeyLimits(self._database)
        self.replicas = SqlReplicas(self._database)
        self.usage = SqlStorageUsage(self._database)

    @property
    def permits(self) -> Mapping[str, Permits]:
        return {"store_reads": self._database.reads, "store_writes": self._database.room}

    async def open(self) -> None:
        """Connect and bring the tables up to date; raises StoreError."""
        await self._database.open()

    def watch(self, topic: str) -> AbstractContextManager[Watch]:
        return self._database.notifier.watch(topic)

    def share(self, elsewhere: WatchesElsewhere) -> None:
        """See `store.SharesWatches`."""
        self._database.notifier.share(elsewhere)

    async def check_writable(self) -> None:
        await self._database.check_writable()

    async def sweep(self, now: float) -> SweepResult:
        return await sweep(self._database, now)

    async def close(self) -> None:
        await self._database.close()

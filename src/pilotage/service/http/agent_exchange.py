"""The exchange with agents under `/agent/`: messages and answers, and the files they fetch and upload.

Every attempt passes through here, so this path does as little as possible: it decodes the message, and sends the
engine's answer as it is. The dispatcher has already found the route and authenticated the agent, as for every request.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl

import msgspec

from pilotage.book.rows.rows import AttemptFacts, JobRow
from pilotage.engine.engine import Engine
from pilotage.engine.files.queries import cached_under
from pilotage.language.text.names import why_outside
from pilotage.model.events.events import COUNTER_MAX, DOTTED, JOB_ID
from pilotage.model.exchange.exchange import AgentMessage, AgentReply, AttemptRef, Exchange, ExchangeReply
from pilotage.model.exchange.operations import FetchFile
from pilotage.model.exchange.reports import SiteAgentMessage
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import ContentStore
from pilotage.reading.access import SITE_AGENT, Forbidden, Principal
from pilotage.reading.queries import UnknownJob, UnknownPackage, package_place
from pilotage.service.errors import NotRunning
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.errors import ErrorBody, ErrorView, Malformed, NotARange, NotAwaited, UnknownContent
from pilotage.service.http.ranges import PIECE_BYTES, range_of, ranged_reply
from pilotage.service.http.routing import OCTETS, ApiRequest, Reply
from pilotage.service.http.services import Services
from pilotage.service.transfers.streaming import StreamedFile

# Restricts the tokens of agents and sites: an agent may not act for another one, nor read files that it does not need.
#
# All pilots of a site start with the site's token, and any of them can read it. So it only allows an unknown pilot to
# introduce itself: the pilot gets a token of its own, and is served when it shows that. From then on its name, which
# cannot be guessed, belongs to that token; a pilot that takes over from a dead one finds the token beside its events.
# The site agent, which started them all, may act for each of them.
#
# The engine is asked once for each pilot, and about once a minute for each job or content that is fetched, so exchanges
# cost nothing more.

BELIEVED_SECONDS = 60.0
REMEMBERED_MAX = 10_000
JOBS_MAX = 100
"""How many jobs and contents to cache."""
SEQUENCE_MAX = 2**41
"""A pilot that takes over the events of a dead one numbers its exchanges from 2**40, beyond all of the dead one."""

Result = TypeVar("Result")


class _Sited(msgspec.Struct):
    site: str = ""
    request: str | None = None


_sited = msgspec.json.Decoder(_Sited)


class AgentTokenChecks:
    """Restricts agents to the site that their token names."""

    def __init__(
        self,
        backend: JobBackend,
        *,
        site_of_pilot: Callable[[str], Awaitable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what runs jobs, and a function that finds the site of a pilot in the book."""
        self._backend = backend
        self._site_of_pilot = site_of_pilot
        self._clock = clock
        self._sites: dict[str, str] = {}  # of pilots that the engine or the book knows
        # until when a site may read some files of a job
        self._files: dict[tuple[str, str], tuple[float, frozenset[str]]] = {}
        self._contents: dict[tuple[str, str], float] = {}  # … and some content
        self._cached: dict[tuple[str, str], tuple[float, FetchFile | None]] = {}  # files in caches of sites, by name

    async def check_exchange(self, principal: Principal, says: AgentMessage, ended: Principal | None = None) -> bool:
        """Whether to process an exchange; a new agent, or one whose token has expired, first gets a token of its own.

        An expired token proves that it is the same agent as before; the token of its site, that it may still connect.
        Raises `Forbidden` for an exchange of another site, or in the name of another pilot.
        """
        exchange = says.exchange
        if exchange.site != principal.site:
            raise _forbidden(principal, f"site {exchange.site[:64]}")
        name = exchange.pilot
        if principal.pilot not in ("", name):
            raise _not_its_own(principal, f"pilot {name[:64]}")
        known = self._sites.get(name)
        if known is None:
            # An unknown pilot identifies itself in this very exchange, checked below. One that has ended may still
            # report what it ran, and no agent of another site can.
            known = await self._ask(lambda engine: _site_of(engine, name)) or await self._site_of_pilot(name)
            if known:
                if len(self._sites) >= REMEMBERED_MAX:
                    self._sites.clear()
                self._sites[name] = known
        if known not in ("", principal.site):
            raise _forbidden(principal, f"pilot {name[:64]} of site {known}")
        if not principal.pilot:
            if not known or (ended is not None and (ended.site, ended.pilot) == (principal.site, name)):
                return False
            self.check_holder(principal, name)
        await self._check_events(principal, exchange)
        return True

    async def _check_events(self, principal: Principal, exchange: Exchange) -> None:
        """Raise `Forbidden` if an event claims another site, or a request of another site."""
        for event in exchange.events:
            if event.type == "PilotStarted" and (request := _claims_of(event.data).request):
                asked = await self._ask(partial(_asked_at, request))
                if asked not in ("", principal.site):
                    raise _forbidden(principal, f"pilot {request[:64]}, requested at site {asked}")
            if event.type in ("PilotStarted", "NodeDescribed") or event.site is not None:
                claimed = event.site or _claims_of(event.data).site
                if claimed not in ("", principal.site):
                    raise _forbidden(principal, f"site {claimed[:64]}")

    def check_holder(self, principal: Principal, pilot: str | None) -> None:
        """Raise `Forbidden` unless the principal is the pilot itself, or its site's agent."""
        if principal.site and principal.pilot != pilot and SITE_AGENT not in principal.scopes:
            raise _not_its_own(principal, f"pilot {pilot[:64]}" if pilot else "no pilot")

    def has_attempt(self, principal: Principal, attempt: AttemptFacts) -> bool:
        """Whether no other pilot has the attempt, and it is at no other site."""
        if not principal.site:
            return True
        return attempt.site == principal.site and (SITE_AGENT in principal.scopes or attempt.pilot == principal.pilot)

    def check_introduced(self, principal: Principal) -> None:
        """Raise `Forbidden` for the token that all pilots of a site start with: it only allows an introduction."""
        if principal.site and not principal.pilot and SITE_AGENT not in principal.scopes:
            raise _not_its_own(principal, "the token that all pilots of its site have")

    def check_site(self, principal: Principal, says: SiteAgentMessage) -> None:
        """Raise `Forbidden` if a site agent reports for another site."""
        sites = {says.site, *(each.site for each in says.reports)}
        if principal.site and sites != {principal.site}:
            raise _forbidden(principal, f"site {next(iter(sites - {principal.site}))[:64]}")

    async def check_file(self, principal: Principal, job: str, name: str) -> None:
        """Raise `Forbidden` for a file that no attempt of a job at the site reads now.

        Each lookup returns the names of all files in use, so that few lookups serve many files.
        """
        site, now = principal.site, self._clock()
        until, names = self._files.get((site, job), (0.0, frozenset()))
        if until > now and name in names:
            return
        names = await self._ask(lambda engine: self._backend.jobs.reads(engine, site, job))
        if name not in names:
            raise _forbidden(principal, f"file {name[:256]} of job {job[:64]}, which none of its attempts reads")
        if len(self._files) >= JOBS_MAX:
            self._files.clear()
        self._files[site, job] = (now + BELIEVED_SECONDS, names)

    async def cached_file(self, site: str, name: str) -> FetchFile | None:
        """The file in the cache of a site under a name; looked up once for many pieces."""
        now = self._clock()
        until, order = self._cached.get((site, name), (0.0, None))
        if until <= now:
            order = await self._ask(lambda engine: cached_under(engine.state, name, site=site))
            if len(self._cached) >= REMEMBERED_MAX:
                self._cached.clear()
            if order is not None:
                self._cached[site, name] = (now + BELIEVED_SECONDS, order)
        return order

    async def check_contents(
        self, principal: Principal, asked: Collection[str], brought_by: Callable[[str], Awaitable[frozenset[str]]]
    ) -> None:
        """Raise `Forbidden` for content of no job that the site runs something of now."""
        site, now = principal.site, self._clock()
        wanted = {sha256 for sha256 in asked if self._contents.get((site, sha256), 0.0) <= now}
        left = set(wanted)
        for job in await self._ask(lambda engine: _jobs_at(engine, site)) if left else ():
            left -= await brought_by(job)
            if not left:
                break
        if left:
            raise _forbidden(principal, f"content {min(left)[:64]}, which none of its attempts needs")
        if len(self._contents) + len(wanted) > REMEMBERED_MAX:
            self._contents.clear()
        self._contents.update(((site, sha256), now + BELIEVED_SECONDS) for sha256 in wanted)

    async def _ask(self, question: Callable[[Engine], Result]) -> Result:
        return await asyncio.wrap_future(self._backend.jobs.ask(question))


def check_numbers(exchange: Exchange) -> None:
    """Raise `Malformed` for an exchange number that no agent reaches: accepted, it would make all others old."""
    if exchange.sequence > SEQUENCE_MAX:
        raise Malformed("this number is too large", expected=f"at most {SEQUENCE_MAX}", got=str(exchange.sequence))


def _site_of(engine: Engine, pilot: str) -> str:
    """The site of a pilot or of a pilot request; so the name of a request cannot be used for an introduction."""
    found = engine.state.pilots.by_name.get(pilot) or engine.state.pilots.requests.get(pilot)
    return found.site.name if found is not None else ""


def _jobs_at(engine: Engine, site: str) -> list[str]:
    """The jobs that the pilots of a site hold attempts of."""
    pilots = [each for each in engine.state.pilots.by_name.values() if each.site.name == site]
    return list(dict.fromkeys(ref.job for pilot in pilots for ref in (*pilot.assigned, *pilot.owed)))


def _asked_at(key: str, engine: Engine) -> str:
    """The site of a pilot request that may still start."""
    found = engine.state.pilots.requests.get(key)
    return found.site.name if found is not None else ""


def _claims_of(data: msgspec.Raw) -> _Sited:
    try:
        return _sited.decode(data)
    except msgspec.DecodeError:
        return _Sited()  # the engine refuses it


def _not_its_own(principal: Principal, got: str) -> Forbidden:
    return Forbidden(
        "only the pilot itself may do this, with the token from the answer to its first exchange",
        subject=f"site {principal.site}",
        expected=f"pilot {principal.pilot}" if principal.pilot else "the token of one pilot",
        got=got,
        next_step="get one from `POST /agent/exchange` under a new name: it is in the header `Pilotage-Token`",
    )


def _forbidden(principal: Principal, got: str) -> Forbidden:
    return Forbidden(
        "this token is for the agents of one site",
        subject=principal.user,
        expected=f"site {principal.site}",
        got=got,
        next_step="show the token of that site",
    )


TOKEN_HEADER = "Pilotage-Token"
"""The header in the answer to an exchange that has the agent's new token."""
VERSION_HEADER, SHA256_HEADER = "Pilotage-Version", "Pilotage-Sha256"
"""Headers of a file from a store: what the store calls its version, and its checksum, if the store knows it."""
OUTPUTS_MAX = 100_000
"""The most outputs of one attempt; agents have the same limit."""

_STAGED = re.compile(r"([^/]+)/([^/]+)/([0-9]{1,9})/([0-9]{1,9})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
CONTENTS_MAX, CONTENTS_BYTES_MAX = 1000, 8 * 2**20
"""The most contents in one request of an agent, and the most bytes in its answer."""


class _ContentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    sha256: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")], ...], msgspec.Meta(max_length=CONTENTS_MAX)
    ]


_decode_contents = msgspec.json.Decoder(_ContentsRequest).decode
_decode = msgspec.json.Decoder(AgentMessage).decode
_decode_site = msgspec.json.Decoder(SiteAgentMessage).decode
_encode = msgspec.json.Encoder().encode


class AgentExchange:
    """Answers agents."""

    def __init__(self, services: Services, backend: JobBackend) -> None:
        """Take what runs jobs, and the services around it."""
        self._services = services
        self._backend = backend
        self._open: set[asyncio.Future[bytes]] = set()  # exchanges waiting for an answer
        self._stopping = False
        self._bounds = AgentTokenChecks(backend, site_of_pilot=self._site_of)
        backend.when_dismissed(self._release)

    def _release(self) -> None:
        """Answer all waiting agents; called from any thread. The answer tells them why."""
        for waiting in list(self._open):
            waiting.get_loop().call_soon_threadsafe(waiting.cancel)

    def stop(self) -> None:
        """Answer all waiting agents; they ask again until a service is back."""
        self._stopping = True
        for waiting in list(self._open):
            waiting.cancel()

    def _reply(self, principal: Principal, answer: bytes) -> Reply[bytes]:
        """An answer, with a new token if the agent's own expires soon."""
        token = self._services.access.renewed(principal) if principal.expires_at else ""
        return Reply(body=answer, headers={TOKEN_HEADER: token}) if token else Reply(body=answer)

    def _introduction(self, principal: Principal, says: AgentMessage) -> Reply[bytes]:
        """The answer to an unknown pilot: the token for repeating its exchange, and the time."""
        exchange, token = says.exchange, self._services.access.pilot_token(principal, says.exchange.pilot)
        now = self._services.clock.now()
        reply = ExchangeReply(pilot=exchange.pilot, sequence=exchange.sequence, time=now)
        return Reply(body=_encode(AgentReply(reply=reply)), headers={TOKEN_HEADER: token})

    async def exchange(self, request: ApiRequest) -> Reply[bytes]:
        """Process an agent's exchange; answered when there is something to say, or after its interval."""
        principal, body = request.user, await request.body()
        try:
            says = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise Malformed(f"this is not an exchange: {fault}") from None
        check_numbers(says.exchange)
        ended = self._services.access.holder(says.ended_token) if principal.site else None
        if principal.site and not await self._bounds.check_exchange(principal, says, ended):
            return self._introduction(principal, says)
        if (reply := self._farewell(says) or self._doubt(says)) is not None:
            return self._reply(principal, reply)
        try:
            return self._reply(principal, await self._patiently(lambda: self._backend.jobs.exchange(says)))
        except asyncio.CancelledError:
            if (farewell := self._farewell(says)) is not None:
                return Reply(body=farewell)
            if not self._stopping:
                raise
            raise _stopping() from None

    async def _patiently(self, ask: Callable[[], Future[bytes]]) -> bytes:
        """Wait for an answer that may take long; cancelled when the service stops."""
        if self._stopping:
            raise _stopping()
        waiting = asyncio.wrap_future(ask())
        self._open.add(waiting)
        try:
            return await waiting
        finally:
            self._open.discard(waiting)

    async def exchange_with_site(self, request: ApiRequest) -> Reply[bytes]:
        """Process a site agent's exchange; answered when there is something to report or to do."""
        principal = request.user
        try:
            says = _decode_site(await request.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise Malformed(f"this is not an exchange of a site: {fault}") from None
        self._bounds.check_site(principal, says)
        if self._backend.dismissed:
            raise _stopping()
        try:
            answer = await self._patiently(lambda: self._backend.jobs.exchange_with_site(says))
            return self._reply(principal, answer)
        except asyncio.CancelledError:
            if not self._stopping and not self._backend.dismissed:
                raise
            raise _stopping() from None

    def _farewell(self, says: AgentMessage) -> bytes | None:
        """The answer to an agent that must leave; None if it may stay."""
        exchange = says.exchange
        if not self._backend.dismissed:
            return None
        reply = ExchangeReply(pilot=exchange.pilot, sequence=exchange.sequence, leave=self._backend.dismissed)
        return _encode(AgentReply(reply=reply))

    def _doubt(self, says: AgentMessage) -> bytes | None:
        """The answer to an agent whose clock may be wrong: our time. Its next exchange shows whether it is."""
        exchange, now = says.exchange, self._services.clock.now()
        tolerance_seconds = self._services.settings.book.skew_seconds
        if not exchange.events or not exchange.is_doubtful(received=now, tolerance_seconds=tolerance_seconds):
            return None
        return _encode(AgentReply(reply=ExchangeReply(pilot=exchange.pilot, sequence=exchange.sequence, time=now)))

    # Contents, files and staged outputs, for agents that cannot see our folders.

    async def content(self, request: ApiRequest, sha256: str) -> Reply[bytes]:
        """Content that a job brought along."""
        self._bounds.check_introduced(request.user)
        if request.user.site:
            await self._bounds.check_contents(request.user, (sha256,), self._brought_by)
        asked = request.header("range")
        if not _SHA256.fullmatch(sha256):
            raise UnknownContent("no such content is stored here", subject=sha256[:64])
        content = await self._services.do(self._services.journal.content, sha256)
        if content is not None:
            known = content
            if not asked:
                return Reply(body=known, media_type=OCTETS)
            return await ranged_reply(
                lambda offset, size_bytes: known[offset : offset + size_bytes], asked=asked, size_bytes=len(known)
            )
        store = self._backend.content
        size_bytes = await self._services.do(store.size, sha256) if store is not None else None
        if store is None or size_bytes is None:
            raise UnknownContent("no such content is stored here", subject=sha256[:64])
        return await ranged_reply(partial(_read_content, store, sha256), asked=asked, size_bytes=size_bytes)

    async def contents(self, request: ApiRequest) -> Reply[bytes]:
        """Many contents that jobs brought along, each after a line with its sha256 and its size in bytes.

        Those that are not here, or beyond the bytes of an answer, are left out.
        """
        self._bounds.check_introduced(request.user)
        try:
            asked = _decode_contents(await request.body()).sha256
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise Malformed(f"this is not a list of checksums: {fault}") from None
        if request.user.site:
            await self._bounds.check_contents(request.user, asked, self._brought_by)
        return Reply(body=await self._services.do(self._frames, asked), media_type=OCTETS)

    def _frames(self, asked: Collection[str]) -> bytes:
        frames, left_bytes = [], CONTENTS_BYTES_MAX
        for sha256 in dict.fromkeys(asked):
            content = self._services.journal.content(sha256)
            if content is None and (store := self._backend.content) is not None:
                size_bytes = store.size(sha256)
                if size_bytes is not None and size_bytes <= left_bytes:
                    content = store.read(sha256, offset=0, size_bytes=size_bytes)
                    content = content if len(content) == size_bytes else None
            if content is not None and len(content) <= left_bytes:
                frames.append(b"%b %d\n%b" % (sha256.encode(), len(content), content))
                left_bytes -= len(content)
        return b"".join(frames)

    async def nothing(self, request: ApiRequest) -> Reply[ErrorView]:
        """The answer to every other path."""
        self._bounds.check_introduced(request.user)
        return Reply(body=ErrorView(error=ErrorBody(code="not_found", message="no such path")), status=404)

    async def _site_of(self, pilot: str) -> str:
        """The site of a pilot according to the book; empty if unknown."""
        row = await self._services.do(self._services.journal.pilot, pilot)
        return (row.site or "") if row is not None else ""

    async def _brought_by(self, job: str) -> frozenset[str]:
        """The checksums of files that a job brought along."""
        row = await self._services.do(self._services.journal.job, job)
        return self._backend.brought_by(row) if row is not None else frozenset()

    async def _job(self, job: str) -> tuple[JobRow, str]:
        """A job that runs here, and its folder."""
        row = await self._services.do(self._services.journal.job, job) if JOB_ID.fullmatch(job) else None
        folder = self._backend.folder_of(row) if row is not None else None
        if row is None or folder is None:
            raise UnknownJob("no such job is run here", subject=f"job {job[:64]}")
        return row, folder

    async def file(self, request: ApiRequest, job: str) -> Reply[bytes]:
        """A file of a job's folder, or a piece of it; the first bytes are read before the answer begins."""
        self._bounds.check_introduced(request.user)
        name = _parameters(request).get("name", "")
        if request.user.site:
            await self._bounds.check_file(request.user, job, name)
        (_, folder), tree = await self._job(job), self._backend.jobs.tree
        if why := why_outside(name):
            raise UnknownContent(f"a file of the job cannot have this name: {why}", subject=name[:256])
        found = (await self._services.do(tree.look_up, folder, [name])).get(name)
        if found is None or found.size_bytes < 0:
            raise UnknownContent("no such file is there" if found is None else "this is not a file", subject=name[:256])
        return await ranged_reply(
            lambda offset, size_bytes: tree.read(folder, name, offset=offset, size_bytes=size_bytes),
            asked=request.header("range"),
            size_bytes=found.size_bytes,
        )

    async def transfer(self, request: ApiRequest, key: str) -> Reply[bytes]:
        """A file of a store that a site agent is to bring to its site, or a piece of it, or where it can be fetched.

        Only an agent of the site that the file is ordered for gets it, and only while it is ordered.
        """
        jobs = self._backend.jobs
        order = jobs.ordered_fetch(key, site=request.user.site or None)
        if order is None:
            raise UnknownContent("no file with this key is ordered for your site", subject=key[:128])
        return await self._from_store(request, order, direct=_parameters(request).get("direct") != "no")

    async def cached(self, request: ApiRequest, name: str) -> Reply[bytes]:
        """A file that is in the cache of the agent's site, for nodes that do not see the cache."""
        self._bounds.check_introduced(request.user)
        order = await self._bounds.cached_file(request.user.site, name)
        if order is None:
            raise UnknownContent("no such file is in the cache of your site", subject=name[:128])
        return await self._from_store(request, order, direct=False)

    async def _from_store(self, request: ApiRequest, order: FetchFile, *, direct: bool) -> Reply[bytes]:
        asked, transfers = request.header("range"), self._backend.jobs.transfers
        if transfers is None:
            raise UnknownContent("this service moves no files", subject=order.key[:128])
        streamed = StreamedFile(asked, range_of)
        leave = transfers.send(order, streamed, key=f"{order.key} {secrets.token_hex(4)}", direct=direct)
        try:
            found, start, end, presigned = await streamed.head
        except BaseException:
            streamed.leave(leave)
            raise
        headers = {VERSION_HEADER: _header_text(found.version)} if found.version else {}
        headers |= {SHA256_HEADER: found.sha256} if found.sha256 else {}
        if presigned is not None:
            # Whoever has this URL can read the file: it is in this answer alone.
            return Reply(status=307, headers={**headers, "Location": presigned.url, "Cache-Control": "no-store"})
        if end is not None:
            headers |= {"Content-Length": str(end - start), "Accept-Ranges": "bytes"}
            headers |= {"Content-Range": f"bytes {start}-{end - 1}/{found.size_bytes}"} if asked else {}
        content = streamed.content(None if end is None else end - start, leave)
        return Reply(
            stream=content, status=206 if asked and end is not None else 200, headers=headers, media_type=OCTETS
        )

    async def stage(self, request: ApiRequest, place: str) -> Reply[None]:
        """Receive a piece of an output."""
        principal = request.user
        self._bounds.check_introduced(principal)
        found = _STAGED.fullmatch(place)
        if found is None or not DOTTED.fullmatch(found[2]):
            raise UnknownPackage("no outputs are taken here", subject=request.scope["path"][:256])
        ref, number = AttemptRef(found[1], found[2], int(found[3])), int(found[4])
        offset_text = _parameters(request).get("offset", "0")
        if not offset_text.isascii() or not offset_text.isdigit() or int(offset_text) > COUNTER_MAX:
            raise NotARange("not an offset in a file", subject="offset", got=repr(offset_text[:40]))
        try:
            row, folder = await self._job(ref.job)
        except UnknownJob:
            if not principal.site:
                raise
            raise _no_attempt(ref) from None
        await self._services.do(self._refuse_unasked, row, ref, number, principal)
        write = self._backend.jobs.tree.write_staged
        begin = offset = int(offset_text)
        held, more = bytearray(), True
        while more:
            piece, more = await request.piece()
            held += piece
            # An empty output is a file, too.
            if len(held) >= PIECE_BYTES or (not more and (held or offset == begin)):
                await asyncio.to_thread(write, folder, ref, number=number, offset=offset, data=bytes(held))
                offset += len(held)
                held.clear()
        return Reply(status=204)

    def _refuse_unasked(self, job: JobRow, ref: AttemptRef, number: int, principal: Principal) -> None:
        """Refuse outputs that were not requested: they must belong to an attempt that may still be granted.

        For another agent's attempt the answer is the same as for an unknown one, so that an agent learns of no other
        job.
        """
        if job.state in FINAL_NAMES and not principal.site:
            raise _over(job, ref)
        try:
            facts = self._services.reader.package(job, package_place(ref.package)).facts
        except UnknownPackage:
            if not principal.site:
                raise
            facts = None
        attempt = facts.attempts.get(ref.attempt) if facts is not None else None
        if attempt is None or not self._bounds.has_attempt(principal, attempt):
            raise _no_attempt(ref)
        if job.state in FINAL_NAMES:
            raise _over(job, ref)
        if attempt.staged_at is not None or attempt.finished_at is not None:
            raise NotAwaited("its outputs were reported already", subject=f"attempt {ref.attempt} of {ref.package}")
        if number >= OUTPUTS_MAX:
            raise NotAwaited(f"an attempt has at most {OUTPUTS_MAX:,} outputs", subject=f"output {number}")


def _read_content(store: ContentStore, sha256: str, offset: int, size_bytes: int) -> bytes:
    return store.read(sha256, offset=offset, size_bytes=size_bytes)


def _no_attempt(ref: AttemptRef) -> UnknownPackage:
    return UnknownPackage(
        f"job {ref.job[:64]} has no such attempt, or another agent has it",
        subject=f"attempt {ref.attempt} of {ref.package}",
    )


def _over(job: JobRow, ref: AttemptRef) -> NotAwaited:
    return NotAwaited(f"the job {job.job} is over: {job.state}", subject=f"package {ref.package}")


def _stopping() -> NotRunning:
    return NotRunning("the service is stopping", next_step="ask again when it is back")


def _header_text(version: str) -> str:
    """The version of a file as a header: stores may call it anything."""
    return version if version.isascii() and version.isprintable() else version.encode("utf-8", "surrogateescape").hex()


def _parameters(request: ApiRequest) -> dict[str, str]:
    return dict(parse_qsl(request.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))

"""Renders whole pages with access control, and serves static files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse

from dsf.errors import AccessError, BackendError, QueryError, SettingsError
from dsf.process.valuecache import ValueCache
from dsf.web.access import ACT, LOOK, PageUser, Right, UserAccess
from dsf.web.actions import all_acts
from dsf.web.pages import ALLOWED, PageView, Sources
from dsf.web.rendering import digest, render, with_ages
from dsf.web.sessions import Sessions, cookie_of, form_secret, set_cookie

#: Most characters of a page's query.
LONGEST_QUERY: Final = 2000


@dataclass(frozen=True)
class _Part:
    """The part of a page that is the same for all viewers."""

    title: str
    #: Seconds between two polls of it; 0: none.
    every: int
    html: str


class LoginNeededError(Exception):
    """The request has no authenticated user."""


class Site:
    """Renders pages and checks access."""

    def __init__(self, sources: Sources, access: UserAccess) -> None:
        self.sources = sources
        self.access = access
        self.sessions = Sessions(sources.reading.redis)
        # Less than the time between two polls of one viewer; a page has up to 400 kB.
        self._parts: ValueCache[str, _Part] = ValueCache(seconds=2.0, max_entries=50)
        self.version = metadata.version("dynamic-scoring-framework")

    def caller(self, request: Request) -> PageUser | None:
        """Return the user of a request; None without a login. Raises AccessError."""
        page_user: PageUser | None = request.scope.get("dsf.caller")
        if page_user is None:
            page_user = self.access.recognise(request)
            if page_user is None and self.access.login is not None:
                page_user = self._logged_in(request)
            request.scope["dsf.caller"] = page_user
        return page_user

    def holder(self, token: str, client: str) -> PageUser:
        """Return the holder of a token that a client sent, or that opened a session.

        Raises AccessError for an invalid one, BackendError if it cannot be checked.
        """
        if self.access.login is None:
            raise AccessError("there is no login here", 401)
        try:
            return self.access.login(token, client)
        except SettingsError as error:
            raise BackendError(str(error)) from None

    def _logged_in(self, request: Request) -> PageUser | None:
        """The holder of the session's token, which may be revoked or have expired meanwhile: that ends the session."""
        cookie = cookie_of(request)
        token = self.sessions.token(cookie)
        if not token:
            return None
        try:
            # Not the client's address: wrong tokens of others behind its proxy must not end the session.
            return self.holder(token, f"session {digest(cookie)}")
        except AccessError as error:
            if error.status != 401:
                raise
        self.sessions.close(cookie)
        return None

    def allow(self, request: Request, right: Right) -> PageUser:
        """Return the user of a request with this right. Raises LoginNeededError and AccessError.

        Raises BackendError and redis.RedisError if this cannot be checked.
        """
        caller = self.caller(request)
        if caller is None:
            raise LoginNeededError("a login is required")
        # A user may act only on what the user may see.
        required_rights = dict.fromkeys((LOOK, right))
        if all(self.access.allows(caller, required) for required in required_rights):
            return caller
        if self.access.is_open:
            reason = "this page is read-only: start it with --allow-actions, or enable authentication (docs/web.md)"
            raise AccessError(reason, 403)
        text = " and ".join(f"`{required}`" for required in required_rights)
        raise AccessError(f"{caller.name} may not do this: it takes the right to {text}", 403)

    def page(self, view: PageView, request: Request) -> HTMLResponse:
        """One page. Raises what its view raises."""
        caller = self.allow(request, view.needs)
        if len(request.url.query) > LONGEST_QUERY:
            raise QueryError(f"a query has at most {LONGEST_QUERY} characters")
        root, names = request.scope["dsf.root"], request.path_params
        query = {name: text for name, text in request.query_params.items() if name in view.knows}
        if view.more_with and self.access.allows(caller, view.more_with):
            query[ALLOWED] = str(view.more_with)

        def make() -> _Part:
            context = {"every": 3 if view.live else 0, **view.build(self.sources, names, query)}
            template_context = {**context, "options": self.sources.settings, "query": query}
            html = render(context.get("template", view.template), root, template_context)
            return _Part(context["title"], context["every"], html)

        if view.live:
            key = f"{root} {request.scope['path']} {sorted(query.items())}"
            # A page that is opened shows what its user has just done; the next polls show no less.
            part = self._parts.get(key, make, is_new="if-none-match" not in request.headers)
        else:
            part = make()
        acts = all_acts() if view.acts and self.access.allows(caller, ACT) else {}
        return self.respond(
            request, "page.html", title=part.title, every=part.every, content=part.html, acts=acts, names=names
        )

    def form(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a page with a form: its secret is that of the visitor's cookie."""
        cookie = cookie_of(request) or Sessions.fresh()
        answer = self.respond(request, template, status, secret=form_secret(cookie), **context)
        set_cookie(request, answer, cookie)
        return answer

    def respond(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """Return a whole page from a template that extends the base; 304 for a browser that has the same."""
        caller = request.scope.get("dsf.caller")
        leave = form_secret(cookie_of(request)) if caller is not None and self.access.login is not None else ""
        html = render(
            template,
            request.scope["dsf.root"],
            {
                "assets": assets(),
                "version": self.version,
                "options": self.sources.settings,
                "q": request.query_params.get("q", "") if request.url.path.endswith("/find") else "",
                "path": request.scope["path"],
                "caller": caller,
                "leave": leave,
                **context,
            },
        )
        # Without the ages, which the browser counts itself.
        tag = {"ETag": f'"{digest(html)}"'}
        # A proxy that compresses makes the tag a weak one.
        if status == 200 and request.headers.get("if-none-match", "").removeprefix("W/") == tag["ETag"]:
            return HTMLResponse(status_code=304, headers=tag)
        return HTMLResponse(with_ages(html), status_code=status, headers=tag)


@cache
def assets() -> str:
    """Digest of the static files."""
    files = sorted(resources.files("dsf.web").joinpath("static").iterdir(), key=lambda file: file.name)
    return digest("".join(f"{file.name}{file.read_text(encoding='utf-8')}" for file in files))

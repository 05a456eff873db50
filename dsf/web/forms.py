"""Adds the pages with forms: login, logout and actions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from urllib.parse import parse_qsl

import redis
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

import dsf.log
from dsf.api.naming import MAX_NAME_LENGTH
from dsf.errors import AccessError, BackendError
from dsf.web import sessions
from dsf.web.access import ACT_RIGHT, PageUser
from dsf.web.actions import ActionRunner, get_target_path, list_acts
from dsf.web.pages import Act, ActionTarget, FormError
from dsf.web.rendering import make_link
from dsf.web.site import LoginNeededError, Site

log = dsf.log.get(__name__)

#: Maximum characters of a token.
MAX_TOKEN: Final = 16 * 1024
#: Maximum bytes of a form.
_MAX_FORM_BYTES: Final = 32 * 1024
#: Maximum fields of a form.
_MAX_FORM_FIELDS: Final = 30
#: Initial values of form fields.
_INITIAL_VALUES: Final = {"seconds": "", "note": ""}
#: Default duration of a pause.
_DEFAULT_PAUSE: Final = timedelta(hours=2)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises AccessError if the form is too large or has too many fields (413), or if a field occurs twice (400).
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise AccessError("this form is too large", 413)
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
    except ValueError:
        raise AccessError("this form has too many fields", 413) from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise AccessError("this form has a field twice", 400)
    return fields


def _find_act(name: str) -> Act:
    act = list_acts().get(name)
    if act is None:
        raise HTTPException(404)
    return act


#: The fields of the request's form.
Form = Annotated[dict[str, str], Depends(read_form)]
#: The action that the request's path names.
PathAct = Annotated[Act, Depends(_find_act)]


def add_login(app: FastAPI, site: Site) -> None:
    """Add the pages of login and logout."""

    def show_form(request: Request, status: int, problem: str, to: str) -> Response:
        return site.respond_with_form(request, "login.html", status, title="Log in", problem=problem, to=to)

    @app.get("/login")
    def show_login(request: Request, to: str = "/", lost: str = "") -> Response:
        message = "Your session had ended, so nothing was done. Log in, then send it again." if lost else ""
        return show_form(request, 200, message, _restrict_to_site(to))

    @app.post("/login")
    def log_in(request: Request, form: Form) -> Response:
        to, address = _restrict_to_site(form.get("to", "/")), request.client.host if request.client else ""
        form_secret = form.get("secret", "")
        try:
            # Accept the form of an outdated cookie if the user is logged in, because a login in another tab replaces
            # the cookie to which this form belongs.
            if not sessions.has_form_secret(request, form_secret) and (user := _find_session_user(request, site)):
                log.info("already logged in", caller=user.name, client=address)
                return RedirectResponse(make_link(request.scope["dsf.root"], to), 303)
            sessions.check_form(request, form_secret)
            token = form.get("token", "").strip()[:MAX_TOKEN]
            caller = site.authenticate_token(token, address)
        except AccessError as error:
            log.warning("login refused", client=address, reason=str(error))
            return show_form(request, error.status, str(error), to)
        except BackendError as error:
            log.warning("login cannot be checked", client=address, reason=str(error))
            return show_form(request, 503, "your login cannot be checked now; try again", to)
        log.info("logged in", caller=caller.name, client=address)
        site.sessions.end(sessions.read_cookie(request))
        response = RedirectResponse(make_link(request.scope["dsf.root"], to), 303)
        sessions.set_cookie(request, response, site.sessions.open(token))
        return response

    @app.post("/logout")
    def log_out(request: Request, form: Form) -> Response:
        sessions.check_form(request, form.get("secret", ""))
        site.sessions.end(sessions.read_cookie(request))
        response = RedirectResponse(make_link(request.scope["dsf.root"], "/login"), 303)
        sessions.delete_cookie(request, response)
        return response


def _find_session_user(request: Request, site: Site) -> PageUser | None:
    """Return the user of the request's session; None without a session, or if the session cannot be checked."""
    try:
        return site.authenticate(request)
    except (AccessError, BackendError):
        return None


def add_acts(app: FastAPI, site: Site, action_runner: ActionRunner) -> None:
    """Add the pages with the forms of actions."""

    def show_form(
        request: Request,
        act: Act,
        target: ActionTarget,
        values: Mapping[str, str],
        problem: str = "",
        status: int = 200,
    ) -> Response:
        affected_clusters, unaffected_clusters = action_runner.find_affected_clusters(act.name, target)
        pause_end = (datetime.now(UTC) + _DEFAULT_PAUSE).strftime("%Y-%m-%dT%H:%M")
        return site.respond_with_form(
            request,
            "act.html",
            status,
            title=f"{act.title}: {target.scorer}",
            act=act,
            target=target,
            affected=affected_clusters,
            kept=unaffected_clusters,
            given={**_INITIAL_VALUES, **act.values, "until": pause_end, **values},
            problem=problem,
            back=get_target_path(target),
            **action_runner.build_form_data(act.name, target),
        )

    def authorize(request: Request, act: Act, target: ActionTarget, form: Mapping[str, str] | None = None) -> PageUser:
        """Return the user of a request if the user may act; with `form`, only if the form comes from this page.

        Logs a refused request and raises the error.
        """
        try:
            caller = site.allow(request, ACT_RIGHT)
            if form is not None:
                sessions.check_form(request, form.get("secret", ""))
        except (AccessError, LoginNeededError, BackendError, redis.RedisError) as error:
            page_user: PageUser | None = request.scope.get("dsf.caller")
            log.warning(
                "act refused",
                caller=page_user.name if page_user else "",
                act=act.name,
                # Truncate the names, because unauthenticated clients may send text of any length.
                scorer=target.scorer[:MAX_NAME_LENGTH],
                cluster=(target.cluster or "*")[:MAX_NAME_LENGTH],
                client=request.client.host if request.client else "",
                reason=str(error),
            )
            raise
        return caller

    @app.get("/act/{name}")
    def preview_act(request: Request, act: PathAct, scorer: str, cluster: str = "") -> Response:
        target = ActionTarget(scorer, cluster or None)
        authorize(request, act, target)
        return show_form(request, act, target, {})

    @app.post("/act/{name}")
    def perform_act(request: Request, act: PathAct, form: Form) -> Response:
        target = ActionTarget(form.get("scorer", ""), form.get("cluster", "") or None)
        caller = authorize(request, act, target, form)
        try:
            # Raises UnknownScorerError unless the scorer runs on the cluster.
            action_runner.find_affected_clusters(act.name, target)
            path, query = action_runner.perform(act.name, target, form, caller)
        except FormError as error:
            return show_form(request, act, target, form, str(error), 422)
        cluster, root = target.cluster or "*", request.scope["dsf.root"]
        log.info("done on the page", act=act.name, caller=caller.name, scorer=target.scorer, cluster=cluster)
        return RedirectResponse(make_link(root, path, **query), 303)


def _restrict_to_site(to: str) -> str:
    """Return `to` if it is a path of this site, else `/`, because a redirect must not lead to another site."""
    return to if to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable() else "/"

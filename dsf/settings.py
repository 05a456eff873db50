"""The settings of all processes, with their units and the reasons for their defaults.

Settings are environment variables with the prefix `DSF_` (`DSF_REDIS_URL`, ...). A process rejects an invalid value at
startup, and names the variable and the allowed values. `settings()` reads the environment once per process.

Other distributions add settings by a subclass of `Settings` in the entry point group `dsf.settings`.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args, get_origin

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from dsf import foreignvariables
from dsf.errors import SettingsError

ENV_PREFIX = "DSF_"
#: Maximum number of characters of a pull Secret, because it is in a ManifestWork of each cluster.
_PULL_SECRET_LIMIT: Final = 65_536

#: Roles of processes: `hub` is a process of `dsf hub`; `results` and `beat` are processes of Celery's own commands.
Role = Literal["agent", "hub", "results", "beat", "flower", "cli"]
#: A service of the hub.
Target = Literal["controller", "beat", "results", "web"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)

#: Address for listening on all IPv4 and IPv6 addresses; on a machine without IPv6, on all IPv4 addresses.
ALL_ADDRESSES: Final = "::"
#: Port of the agent and of the hub's page.
DEFAULT_PORT: Final = 8080
#: Entry point group of the settings classes of other distributions.
GROUP: Final = "dsf.settings"


class Settings(BaseSettings):
    """The settings of a process. Sizes are in bytes and times in seconds, unless a description says otherwise."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore", enable_decoding=False)

    # --- every process -----------------------------------------------------------------------------------------
    role: Role = Field(
        default="results",
        description="Type of this process. You need not set it: `dsf` and Celery's own commands choose it. `hub` is a "
        "process of `dsf hub`, whose services are those of `target`; `results` and `beat` are `celery -A dsf.celery "
        "worker` and `beat`. It decides which tasks a Celery worker registers: an agent never registers ingest and the "
        "hub never registers fetch.",
    )
    target: str = Field(
        default="all",
        description="Services that a process of `dsf hub` runs, with commas: controller, beat, results, web; `all` is "
        "each of them. Without effect on Celery's own commands.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="json for a log collector, text for a terminal."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severity that is logged."
    )

    listen_host: str | None = Field(
        default=None,
        description="Address on which this process listens; `::` stands for all IPv4 and IPv6 addresses. By default "
        "the page and the optimiser listen on 127.0.0.1. Agents and the hub's probe_port listen on `::`, because "
        "Prometheus and collectors send requests from other pods.",
    )
    listen_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port on which this process listens: the agent's /metrics (8080), the hub's page, JSON API and "
        "fleet /metrics (8080), the optimiser (8338). 0 selects a free port.",
    )
    probe_port: int = Field(
        default=8081,
        ge=0,
        le=65535,
        description="Port of /healthz, /readyz and the process's own /metrics, for `dsf hub`. It is separate from the "
        "port of the page, so that clients of the page do not delay probes. 0 selects a free port.",
    )
    host_names: list[str] = Field(
        default=[],
        description="JSON array: names of this server, besides localhost, that requests to the page may contain. "
        "Requests with other names are rejected, which prevents DNS rebinding; `*` allows any name. Fleet /metrics "
        "also accepts addresses, names without a dot and names of Services.",
    )
    client_token_file: Path | None = Field(
        default=None,
        description="File with the token that clients of this process must send, read again at each request or login: "
        "users of the page and callers of the optimiser with auth `token`, senders of OTLP to the agent. It has at "
        "least 16 characters. Without it, every client that reaches the agent's OTLP port may push.",
    )
    probe_dir: Path | None = Field(
        default=None,
        description="Folder of the files that probes look for. `alive` is touched every 10 s by the main loop of a "
        "Celery worker, and every second by beat. `ready` exists while an agent consumes its queue and at least one "
        "scorer had a successful cycle within 3 intervals.",
    )

    trusted_ca_dir: Path | None = Field(
        default=None,
        description="Folder of PEM files: CAs trusted besides the public ones for https requests to scoring APIs and "
        "sources.",
    )

    # --- JSON API -----------------------------------------------------------------------------------------------
    api_url: str = Field(
        default="",
        description="URL of the page, such as http://localhost:8080, that read-only commands use "
        "instead of Redis. Empty: Redis.",
    )
    api_token_file: Path | None = Field(
        default=None, description="File with the Bearer token for api_url, if it requires one."
    )

    # --- Redis -------------------------------------------------------------------------------------------------
    redis_url: SecretStr = Field(
        default=SecretStr("redis://localhost:6379/0"),
        description="redis:// or rediss:// (TLS) URL, sentinel://host:port;sentinel://host:port/0, or "
        "unix:///path/of/redis.sock?db=0 for the processes of one machine; a secret because it may contain a password.",
    )
    redis_username: str = Field(default="", description="Redis user; wins over the one in the URL.")
    redis_password_file: Path | None = Field(
        default=None,
        description="File with only the password (a mounted Secret); wins over the one in the URL. It is read again at "
        "every connect, so that a rotated password needs no restart.",
    )
    redis_ca_file: Path | None = Field(
        default=None,
        description="CA of the server's certificate (TLS); no other is trusted then. None: the system's CAs.",
    )
    redis_cert_file: Path | None = Field(
        default=None, description="Client certificate, for a server that requires one (TLS)."
    )
    redis_key_file: Path | None = Field(default=None, description="Private key of redis_cert_file.")
    redis_sentinel_master: str = Field(
        default="", description="Name of the server in the Sentinels of a sentinel:// URL."
    )
    redis_sentinel_tls: bool = Field(
        default=False, description="Use TLS with the Sentinels and with the server that they name."
    )
    redis_sentinel_username: str = Field(default="", description="User of the Sentinels, which have their own users.")
    redis_sentinel_password_file: Path | None = Field(
        default=None, description="File with the password of the Sentinels, read again at every connect."
    )
    redis_pod: str = Field(
        default="",
        description="NAMESPACE/POD:PORT of the hub's Redis, such as hub/dynamic-scoring-redis-0:6379: the agent "
        "reaches it through the hub's API server (`pods/portforward`) with hub_kubeconfig. redis_url then names this "
        "pod itself: hostAliases give its host the address 127.0.0.1. Empty: connect to redis_url directly.",
    )
    scoring_config: dict[str, Any] = Field(
        default={},
        description="Spec (JSON) of the DynamicScoringConfig that the controller creates at its start if its namespace "
        'has none, such as {"masks": []}. An existing one is not changed. Empty: it creates none.',
    )
    redis_movable_pod: str = Field(
        default="",
        description="NAMESPACE/POD of a Redis without a volume: the controller removes it when its node is lost, so "
        "that it starts on another node. Empty: users must remove it.",
    )
    hub_kubeconfig: Path | None = Field(
        default=None,
        description="Kubeconfig for the hub that OCM's registration gives to the add-on; used for redis_pod only, and "
        "read again for each connection, because its certificate is renewed.",
    )
    redis_socket_timeout: float = Field(
        default=10.0,
        gt=0,
        description="Timeout of a response of Redis, so that a half-open connection does not block a worker forever. "
        "The timeout for connecting is half of it. Must exceed redis_polling_interval.",
    )
    redis_polling_interval: int = Field(
        default=5,
        ge=1,
        description="Timeout of a worker's blocking pop. A longer timeout reduces idle requests to the hub (clusters / "
        "interval per second) and slows down the shutdown. It does not delay messages.",
    )

    remote_control: bool = Field(
        default=True,
        description="Workers respond to Celery's `status`, `inspect` and `control rate_limit|revoke` from the hub.",
    )
    redis_manage_users: bool = Field(
        default=False,
        description="The controller creates a Redis user for each cluster and delivers its password with the "
        "signing key. Its own user must have the right to manage users.",
    )
    agent_sentinel_password_file: Path | None = Field(
        default=None,
        description="File with the Sentinels' password that the controller delivers to agents with their own "
        "credentials: that of a user who may only query the address of Redis. Read again at each delivery.",
    )
    agent_pull_secret_file: Path | None = Field(
        default=None,
        description="File with a `.dockerconfigjson` that the controller delivers to managed clusters as the pull "
        "Secret `hub-registry-secret`. Read again at each delivery; if it does not exist, none is delivered.",
    )

    # --- identity ----------------------------------------------------------------------------------------------
    cluster: str = Field(default="", description="Name of the managed cluster an agent serves.")
    signing_key_file: Path | None = Field(
        default=None,
        description="File with the agent's own HMAC key, `<id>:<hex>`; read again when it changes, so rotation needs "
        "no restart.",
    )
    signing_secret: SecretStr | None = Field(
        default=None,
        description="The hub's master secret (hex), from which every agent's key is derived; keys are not stored.",
    )
    signing_secret_file: Path | None = Field(default=None, description="File with the hub's master secret.")

    # --- agent -------------------------------------------------------------------------------------------------
    agent_namespace: str = Field(
        default="dynamic-scoring", description="Namespace of the agent, its ConfigMap and its Secrets."
    )
    agent_kube: bool = Field(
        default=False,
        description="Watch ConfigMap and tokens on the cluster's own API server; changes take effect immediately.",
    )
    agent_config: Path | None = Field(
        default=None,
        description="File with the delivered ConfigMap (a YAML manifest, or the bare JSON of its `summaries` key).",
    )
    agent_secrets_dir: Path | None = Field(
        default=None,
        description="Folder of token Secrets as Kubernetes mounts them: <secret name>/<key>, and beside the keys the "
        "file usable-for with the servers that may receive them.",
    )
    agent_token_secrets: dict[str, list[str]] = Field(
        default={},
        description="JSON object, name of a Secret -> servers (host, host:port or https://host[:port]) that may "
        "receive its tokens, besides those that the Secret itself names. A Secret without servers is never sent.",
    )
    agent_host_aliases: dict[str, str] = Field(
        default={},
        description="JSON object, `name:port` of a URL -> `address:port` to connect to, like a pod's hostAliases, for "
        "a name that means another server on each cluster. For agents that share a machine and its name resolution.",
    )
    agent_concurrency: int = Field(
        default=8,
        ge=1,
        description="Threads, one per cycle. Cycles mostly wait for HTTP, so threads are cheap.",
    )
    agent_spool_dir: Path | None = Field(
        default=None,
        description="Folder for large payloads between stages, in files without a name; default the temp directory. "
        "Any owner is allowed, such as root's emptyDir.",
    )
    agent_rate_limit: str | None = Field(
        default=None,
        description="Celery rate limit of dsf.cycle in this agent, such as 10/s or 30/m. None is no limit.",
    )
    max_source_bytes: int = Field(
        default=64 * 1024 * 1024,
        gt=0,
        description="Maximum decoded bytes of all responses of a source in one cycle.",
    )
    agent_window_series: int = Field(
        default=10_000,
        ge=1,
        description="Maximum number of series in the agent's memory for the sources OpenTelemetry and Kubernetes; each "
        "takes about 2 kB.",
    )
    otlp_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for OTLP/HTTP metrics (4318 by convention), opened with the first scorer that uses them; 0 "
        "takes a free port. None: disabled.",
    )

    # --- service beat ------------------------------------------------------------------------------------------
    queue_limit: int = Field(
        default=100,
        ge=1,
        description="Maximum number of messages in a cluster's queue. With a full queue, the cluster is considered "
        "offline.",
    )
    beat_lock_timeout: float = Field(
        default=10.0, gt=0, description="Time after the death of the active beat at which a standby takes over."
    )

    # --- service results ---------------------------------------------------------------------------------------
    lost_after: float = Field(
        default=15.0,
        ge=0,
        description="Time after its deadline at which a run without a result is lost, once its cluster's mailbox is "
        "empty; a minute later if the mailbox does not become empty.",
    )

    # --- service controller ------------------------------------------------------------------------------------
    namespace: str = Field(default="open-cluster-management", description="The hub's own namespace.")
    scorer_namespaces: list[str] = Field(
        default=[],
        description="JSON array: namespaces whose DynamicScorers are used besides the hub's own. The author of a "
        "DynamicScorer chooses the servers and queries of every agent, so list only namespaces with trusted authors.",
    )
    score_names: dict[str, list[str]] = Field(
        default={},
        description="JSON object: namespace -> score names that its scorers may use, or prefixes that end in `*`: "
        '{"team-a": ["team-a-*", "gpu"]}. Namespaces of scorer_namespaces without an item may use any free name.',
    )
    token_hosts: list[str] = Field(
        default=[],
        description="JSON array: servers (host, host:port or https://host[:port]) that a scorer's /config may name "
        "although they get the scorer's token. Other servers must be in the scorer's spec.",
    )
    scorer_hosts: list[str] = Field(
        default=[],
        description="JSON array: servers (host, host:port or https://host[:port]) that scorers of other namespaces "
        "than the hub's may name, in spec, /config and ScoringAuthentications. Empty: any server.",
    )
    secret_delivery: bool = Field(
        default=False,
        description="Deliver Secrets of the hub's own namespace with the label "
        "dynamic-scoring.open-cluster-management.io/deliver=true to the clusters whose ScoringAuthentications name "
        "them (kube backend).",
    )
    backend: Literal["kube", "dir"] = Field(
        default="kube", description="Storage of the hub's objects: Kubernetes or a folder of manifests."
    )
    manifests: Path | None = Field(default=None, description="Folder of manifests (dir backend).")
    out_dir: Path | None = Field(
        default=None, description="Output folder of the dir backend; default <manifests>/_out."
    )
    kubeconfig: Path | None = Field(
        default=None,
        description="Kubeconfig of the hub (kube backend), or several, separated by colons and merged as by kubectl. "
        "None: the pod's own ServiceAccount.",
    )
    addon_mode: bool = Field(
        default=False,
        description="Serve only clusters with the ManagedClusterAddOn: the agent is installed through OCM.",
    )
    hub_resync: float = Field(
        default=30.0,
        gt=0,
        description="Seconds between two complete reconciliations. Changes take effect immediately; this finds manual "
        "changes in Redis.",
    )
    write_rate: float = Field(
        default=100.0,
        gt=0,
        description="AddOnPlacementScore writes per second for the whole hub. Each costs the "
        "API server some milliseconds. 3,500 clusters x 10 scorers every 30 s, 5 % changing: 58 and the renewals.",
    )
    departure_grace: float = Field(
        default=300.0,
        ge=0,
        description="Seconds for which scores, histories and credentials of a cluster stay after its ManagedCluster or "
        "its ManagedClusterAddOn is gone, histories and credentials after the DynamicScoringConfig is, and objects "
        "of an emptied manifest file or folder: such things come back. A cluster that is not accepted any more loses "
        "its credentials at once.",
    )
    health_interval: float = Field(default=30.0, gt=0, description="Time between two checks of a scoring API.")
    allow_link_local: bool = Field(
        default=False,
        description="Allow requests to link-local and metadata addresses. Clouds serve credentials there, which the "
        "author of a scorer must not obtain from hub or agents.",
    )

    # --- service web: fleet metrics ----------------------------------------------------------------------------
    exporter_series_limit: int = Field(
        default=30_000,
        ge=0,
        description="Series per scrape, without those that `spec.exposition` selects in the hub's own namespace. Each "
        "namespace has a share. Above it the series of items are dropped first, then those of pairs; sums stay. 30,000 "
        "are about 4 MB and less than a second of CPU.",
    )

    # --- service web: page -------------------------------------------------------------------------------------
    hub_name: str = Field(
        default="",
        max_length=80,
        description="Name of this hub on the page and in the titles of its tabs. Default: the address of the API "
        "server in kubeconfig; without one, the name of the ManagedCluster with OCM's label `local-cluster=true`, "
        "unless it is just `local-cluster`.",
    )
    web_root_path: str = Field(
        default="", description="Path prefix of all addresses, such as /scores, behind a reverse proxy."
    )
    web_trusted_proxies: list[str] = Field(
        default=[],
        description="JSON array: addresses or networks of the reverse proxies whose X-Forwarded-For, -Proto, -Host "
        "and -Prefix are trusted.",
    )
    web_auth: Literal["none", "local", "open", "anyone", "token", "kubernetes", "proxy"] = Field(
        default="none",
        description="Authentication: none has no users and is refused unless listen_host is a loopback address; local "
        "likewise, but users of this machine may also act; open gives read access to every client, anyone lets it act "
        "as well, for a port that is published on this machine only; token is one token with all rights, from "
        "client_token_file; kubernetes checks each user's token on the hub (TokenReview, "
        "SubjectAccessReview: get dynamicscorers to read, update to act); proxy trusts the user and groups that a "
        "proxy of web_trusted_proxies names.",
    )
    web_operators: list[str] = Field(
        default=[],
        description="JSON array: users and groups that may act, with auth proxy; all others may read. Empty: the "
        "hub's API server decides, as with auth kubernetes.",
    )
    web_flower_url: str = Field(default="", description="URL of Flower in the browser; runs link to it.")
    web_grafana_url: str = Field(default="", description="URL of Grafana's fleet dashboard in the browser.")

    def listen_address(self, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
        """Return the host and the port on which this process listens."""
        host = (
            (ALL_ADDRESSES if self.role == "agent" else "127.0.0.1") if self.listen_host is None else self.listen_host
        )
        return host, default_port if self.listen_port is None else self.listen_port

    @property
    def targets(self) -> tuple[Target, ...]:
        """The services of a process of `dsf hub`, in the order in which they start."""
        target_names = _split_words(self.target)
        return tuple(target for target in TARGETS if target in target_names or "all" in target_names)

    @property
    def out(self) -> Path | None:
        """The output folder of a hub on a folder; None for other hubs."""
        return self.out_dir or (self.manifests / "_out" if self.manifests is not None else None)

    def with_redis(self, url: str) -> Self:
        """Return these settings for the Redis at `url`, without the user and password of the configured Redis."""
        update = {"redis_url": SecretStr(url), "redis_username": "", "redis_password_file": None}
        return self.model_copy(update=update)

    def resolved_redis_url(self) -> str:
        """Return the Redis URL, which may contain a password."""
        return self.redis_url.get_secret_value()

    def resolved_api_token(self) -> str | None:
        """Return the token for `api_url`, or None. Raises SettingsError if its file cannot be read."""
        return _read_secret(None, self.api_token_file, "API_TOKEN")

    def resolved_redis_password(self) -> str | None:
        """Return the password in `redis_password_file`, or None. Raises SettingsError if the file cannot be read."""
        return _read_secret(None, self.redis_password_file, "REDIS_PASSWORD")

    def resolved_redis_sentinel_password(self) -> str | None:
        """Return the Sentinels' password, or None. Raises SettingsError if its file cannot be read."""
        return _read_secret(None, self.redis_sentinel_password_file, "REDIS_SENTINEL_PASSWORD")

    def resolved_agent_sentinel_password(self) -> str | None:
        """Return the agents' password for the Sentinels, or None.

        Raises SettingsError if its file is empty or cannot be read.
        """
        password = _read_secret(None, self.agent_sentinel_password_file, "AGENT_SENTINEL_PASSWORD")
        if password == "":
            raise SettingsError(
                f"{ENV_PREFIX}AGENT_SENTINEL_PASSWORD_FILE: {self.agent_sentinel_password_file} is empty"
            )
        return password

    def resolved_agent_pull_secret(self) -> str:
        """Return the `.dockerconfigjson` for managed clusters; empty without one.

        Raises SettingsError if its file is invalid or cannot be read.
        """
        file = self.agent_pull_secret_file
        if file is None or not file.exists():
            return ""
        pull_secret = _read_secret(None, file, "AGENT_PULL_SECRET") or ""
        problem = f"{ENV_PREFIX}AGENT_PULL_SECRET_FILE: {file} "
        if len(pull_secret) > _PULL_SECRET_LIMIT:
            raise SettingsError(
                f"{problem}has more than {_PULL_SECRET_LIMIT} characters; a pull Secret has a few hundred"
            )
        try:
            is_usable = isinstance(json.loads(pull_secret).get("auths"), dict)
        except (ValueError, AttributeError, RecursionError):
            is_usable = False
        if not is_usable:
            raise SettingsError(
                f"{problem}is no Docker configuration: make the Secret with kubectl create secret docker-registry"
            )
        return pull_secret

    def resolved_signing_secret(self) -> str | None:
        """Return the hub's master secret in hex, or None. Raises SettingsError if its file cannot be read."""
        return _read_secret(self.signing_secret, self.signing_secret_file, "SIGNING_SECRET")

    @field_validator("*", mode="before")
    @classmethod
    def _from_json(cls, value: Any, info: ValidationInfo) -> Any:
        """Parse the JSON of a list or an object. Returns other text unchanged, so that validation reports the error."""
        field = cls.model_fields[info.field_name or ""]
        if not isinstance(value, str) or get_origin(field.annotation) not in (list, dict):
            return value
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return field.get_default(call_default_factory=True) if document is None else document

    @field_validator("target")
    @classmethod
    def _check_targets(cls, value: str) -> str:
        if error := describe_target_error(value):
            raise ValueError(error)
        return value

    @classmethod
    def load(cls) -> Self:
        """Read the environment. Raises SettingsError, which names each wrong variable.

        Removes variables that would override the settings from the environment (`dsf.foreignvariables`).
        """
        foreignvariables.clean(os.environ)
        try:
            return cls()
        except ValidationError as error:
            error_texts = "; ".join(
                _describe_error(item) for item in error.errors(include_url=False, include_input=False)
            )
            raise SettingsError(f"wrong setting: {error_texts}") from None


def _describe_error(error: ErrorDetails) -> str:
    """Return the variable and its error, with an example of the expected JSON for lists and objects."""
    location = error["loc"]
    name = f"{ENV_PREFIX}{str(location[0]).upper()}: " if location else ""
    item_text = f" (in {location[1]!r})" if len(location) > 1 else ""
    example = {"list_type": '{"a": ["b"]}' if item_text else '["a", "b"]', "dict_type": '{"a": ["b"]}'}.get(
        error["type"]
    )
    json_hint = f", as JSON: {example}" if example else ""
    return f"{name}{error['msg'].removeprefix('Value error, ')}{item_text}{json_hint}"


def describe_target_error(value: str) -> str:
    """Return the unknown services in a value of `target`, and the possible ones; empty if the value is valid."""
    unknown_targets = sorted(_split_words(value) - {"all", *TARGETS})
    if not unknown_targets and _split_words(value):
        return ""
    return f"{', '.join(unknown_targets) or 'empty'}; choose all, or some of {', '.join(TARGETS)}"


def _split_words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}


def _read_secret(value: SecretStr | None, file: Path | None, name: str) -> str | None:
    """Return the stripped content of the file, else the value, else None. Raises SettingsError."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SettingsError(f"{ENV_PREFIX}{name}_FILE: cannot read {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{ENV_PREFIX}{name}_FILE: {file} is no text in UTF-8") from None
    return value.get_secret_value() if value is not None else None


def list_settings_classes() -> list[type[Settings]]:
    """Return `Settings` and its subclasses in installed distributions."""
    installed_entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return [Settings, *(entry.load() for entry in installed_entries)]


@functools.cache
def settings() -> Settings:
    """Return the settings of this process. The first call reads the environment. Raises SettingsError."""
    return Settings.load()


def find_unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the sorted names of variables with the prefix of settings that are no settings, such as misspelt names.

    Skips variables that Kubernetes adds for Services whose names begin with `dsf-`, and those of tests.
    """
    variable_names = {ENV_PREFIX + name.upper() for group in list_settings_classes() for name in group.model_fields}
    services = tuple(
        part
        for name in environment
        if name.startswith(ENV_PREFIX) and name.endswith("_SERVICE_HOST")
        for part in (name.removesuffix("HOST"), name.removesuffix("_SERVICE_HOST") + "_PORT")
    )
    return sorted(
        name
        for name in environment
        if name.upper().startswith(ENV_PREFIX)
        and name.upper() not in variable_names
        and not name.startswith((f"{ENV_PREFIX}TEST_", *services))
    )


def make_child_environment(**values: object) -> dict[str, str]:
    """Return the environment of this process for a child process, with these settings.

    `values` are settings by field name; None removes the variable. Variables that would override settings are removed,
    too.
    """
    environment = dict(os.environ)
    foreignvariables.clean(environment)
    for name, value in values.items():
        variable = ENV_PREFIX + name.upper()
        if value is None:
            environment.pop(variable, None)
        else:
            environment[variable] = json.dumps(value) if isinstance(value, list | dict) else str(value)
    return environment

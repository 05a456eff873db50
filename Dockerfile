# Two images; `dsf` is the entry point of both: docker run IMAGE hub
#
#   docker build --target agent --tag dynamic-scoring-agent .
#   docker build --target hub --tag dynamic-scoring-framework .
#
# The agent's has what an agent needs. The hub's has every command, `dsf agent` too. They are made for a read-only root file
# system and any user without rights; only /tmp and, for the hub on a folder, /var/lib/dsf need to be writable. Nothing in
# them depends on the processor:
#   docker buildx build --platform linux/amd64,linux/arm64 --target agent .

# Base images are named once, by tag and digest of all architectures, where Dependabot renews them.
FROM ghcr.io/astral-sh/uv:0.13.0@sha256:cdc6093146eb3ff6a40107b38f008b789e050e77ad87865e381d9917da55a168 AS uv

FROM python:3.13.16-slim-trixie@sha256:bf44cdfcb76cd3b41e879bc058fc37ec5872002ccfde7fcb765e218cde0cd79c AS interpreter

FROM interpreter AS build
COPY --from=uv /uv /usr/local/bin/uv
# Bytecode is compiled here because it cannot be written later.
ENV UV_PROJECT_ENVIRONMENT=/opt/dsf \
    UV_PYTHON=/usr/local/bin/python3 \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_NO_CACHE=1
WORKDIR /src
# Dependencies are a layer of their own, here and in the images: they change less often than the code, and a node that has
# them takes a few megabytes of code when it takes a new image.
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY packages/dsf-scorer/pyproject.toml packages/dsf-scorer/README.md packages/dsf-scorer/LICENSE packages/dsf-scorer/
COPY packages/dsf-optimizer/pyproject.toml packages/dsf-optimizer/README.md packages/dsf-optimizer/LICENSE packages/dsf-optimizer/
COPY packages/dsf-backtest/pyproject.toml packages/dsf-backtest/README.md packages/dsf-backtest/LICENSE packages/dsf-backtest/
COPY packages/dsf-sources/pyproject.toml packages/dsf-sources/README.md packages/dsf-sources/LICENSE packages/dsf-sources/
COPY demo/pyproject.toml demo/

FROM interpreter AS base
ARG VERSION=0.1.0
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.source="https://github.com/open-cluster-management-io/dynamic-scoring-framework" \
      org.opencontainers.image.licenses="Apache-2.0"
# One heap for two threads, not eight per core, and blocks of 1 MB and more go back to the system when they are freed: else
# each thread would keep the memory of the largest answer that it has seen.
ENV PATH=/opt/dsf/bin:$PATH \
    HOME=/tmp \
    MALLOC_ARENA_MAX=2 \
    MALLOC_MMAP_THRESHOLD_=1048576 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
ENTRYPOINT ["dsf"]
CMD ["--help"]

FROM build AS agent-dependencies
# `--build-arg AGENT_EXTRAS=` leaves out what the OTLP receiver needs, for a collector that pushes metrics: 4 MB.
ARG AGENT_EXTRAS="--extra otel"
# The page and Flower are on the hub. The Kubernetes client is there twice, the second time for asyncio: 80 MB
# that nothing here imports. Celery's shell is for people, and what colours the source code of 500 languages has none to
# colour.
ENV OPTIONS="--locked --no-default-groups --extra backtest --extra sources ${AGENT_EXTRAS} \
      --no-install-package fastapi --no-install-package flower \
      --no-install-package humanize --no-install-package jinja2 --no-install-package markupsafe \
      --no-install-package pytz --no-install-package starlette \
      --no-install-package tornado \
      --no-install-package aiohappyeyeballs --no-install-package aiohttp --no-install-package aiosignal \
      --no-install-package frozenlist --no-install-package multidict --no-install-package propcache --no-install-package yarl \
      --no-install-package click-repl --no-install-package prompt-toolkit --no-install-package wcwidth"
# Azure and Google need cryptography; else it is the page's alone, and 16 MB.
RUN case " ${AGENT_EXTRAS} " in \
      *" azure "*|*" gcp "*) ;; \
      *) echo --no-install-package cffi --no-install-package cryptography --no-install-package pycparser ;; \
    esac >/left-out \
 && uv sync ${OPTIONS} $(cat /left-out) --no-install-workspace \
 && rm -r /opt/dsf/lib/python3*/site-packages/kubernetes/aio \
 && find /opt/dsf/lib/python3*/site-packages/pygments/lexers -type f ! -name '__init__*' ! -name '_mapping*' -delete

FROM agent-dependencies AS agent-code
COPY dsf ./dsf
COPY packages/dsf-backtest/dsf packages/dsf-backtest/dsf
COPY packages/dsf-sources/dsf packages/dsf-sources/dsf
RUN touch /before && mkdir /code \
 && uv sync ${OPTIONS} $(cat /left-out) --no-editable \
 && cd / && find opt/dsf -cnewer /before ! -type d -exec cp --archive --parents --target-directory=/code {} +

FROM base AS agent
LABEL org.opencontainers.image.title="dynamic-scoring-agent" \
      org.opencontainers.image.description="The agent of Dynamic Scoring for Open Cluster Management"
COPY --from=agent-dependencies /opt/dsf /opt/dsf
COPY --from=agent-code /code /
USER 65532:65532
# Metrics.
EXPOSE 8080

FROM build AS hub-dependencies
# `--build-arg EXTRAS=` leaves the optimiser out, whose solver is as large as all the rest, with the page's
# Placements and plans, the agent's OTLP receiver, and `dsf scorer check` with the library for scoring APIs.
ARG EXTRAS="--extra optimizer --extra otel --extra scorer"
ENV OPTIONS="--locked --no-default-groups --extra backtest --extra sources ${EXTRAS}"
RUN uv sync ${OPTIONS} --no-install-workspace

FROM hub-dependencies AS hub-code
COPY dsf ./dsf
COPY packages/dsf-optimizer/dsf packages/dsf-optimizer/dsf
COPY packages/dsf-scorer/dsf packages/dsf-scorer/dsf
COPY packages/dsf-backtest/dsf packages/dsf-backtest/dsf
COPY packages/dsf-sources/dsf packages/dsf-sources/dsf
RUN touch /before && mkdir /code \
 && uv sync ${OPTIONS} --no-editable \
 && cd / && find opt/dsf -cnewer /before ! -type d -exec cp --archive --parents --target-directory=/code {} +

FROM base AS hub
LABEL org.opencontainers.image.title="dynamic-scoring-framework" \
      org.opencontainers.image.description="Dynamic scoring of clusters for Open Cluster Management"
# The folder that a volume gets its owner from.
RUN install -d -o 65532 -g 65532 -m 0750 /var/lib/dsf
COPY --from=hub-dependencies /opt/dsf /opt/dsf
COPY --from=hub-code /code /
USER 65532:65532
# The page and the metrics of the fleet, probes, Flower.
EXPOSE 8080 8081 5555

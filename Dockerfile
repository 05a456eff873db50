# One image for every process; `dsf` is the entry point: docker run IMAGE exporter
#
# It is made for a read-only root file system and any user without rights; only /tmp and, for the hub on a folder,
# /var/lib/dsf need to be writable. Nothing in it depends on the processor:
#   docker buildx build --platform linux/amd64,linux/arm64 .

ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG UV_IMAGE=ghcr.io/astral-sh/uv:0.13.8

FROM ${UV_IMAGE} AS uv

FROM ${PYTHON_IMAGE} AS build
COPY --from=uv /uv /usr/local/bin/uv
# Bytecode is compiled here because it cannot be written later.
ENV UV_PROJECT_ENVIRONMENT=/opt/dsf \
    UV_PYTHON=/usr/local/bin/python3 \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1 \
    UV_NO_CACHE=1
WORKDIR /src
# Dependencies are a layer of their own: they change less often than the code.
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY packages/dsf-scorer/pyproject.toml packages/dsf-scorer/
# Every command works from this image. `--build-arg EXTRAS=` leaves the optimiser out, whose solver is as large as all the
# rest, and the agent's OTLP receiver.
ARG EXTRAS="--extra optimizer --extra otel"
RUN uv sync --locked --no-dev --no-install-project ${EXTRAS}
COPY dsf ./dsf
RUN uv sync --locked --no-dev --no-editable ${EXTRAS}

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="dynamic-scoring-framework" \
      org.opencontainers.image.description="Dynamic scoring of clusters for Open Cluster Management" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# The folder that a volume gets its owner from.
RUN install -d -o 65532 -g 65532 -m 0750 /var/lib/dsf
COPY --from=build /opt/dsf /opt/dsf
ENV PATH=/opt/dsf/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 65532:65532
# Metrics of agent and exporter, Flower.
EXPOSE 8080 5555
ENTRYPOINT ["dsf"]
CMD ["--help"]

# syntax=docker/dockerfile:1
# Firn's image: a node, the console and every command. docs/containers.md says how to build and run it.
#   docker build --build-arg COMMIT="$(git describe --always --dirty --abbrev=12 '--exclude=*')" -t firn .
# The base is Debian 13, whose Python is 3.13; for builds that are the same every day name it by its digest:
#   --build-arg BASE=debian:trixie-slim@sha256:…
ARG BASE=debian:trixie-slim

# -- what is compiled: Firn's wheel with its kernels, and an environment with it and what it needs, and without pip
FROM ${BASE} AS build
SHELL ["/bin/bash", "-eu", "-o", "pipefail", "-c"]
# Debian's packages are those of the day: a pinned one is gone from the mirrors with the next security update.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_REQUIRE_VIRTUALENV=1
# What changes seldom comes first. Both files have a hash for each version: nothing else is installed.
COPY deploy/image/build-requirements.txt deploy/image/requirements.txt /src/deploy/image/
RUN python3 -m venv /tools \
 && /tools/bin/python -m pip install -q --require-hashes -r /src/deploy/image/build-requirements.txt \
 && python3 -m venv --without-pip /opt/firn \
 && /tools/bin/python -m pip --python /opt/firn/bin/python install -q --only-binary :all: --require-hashes -r /src/deploy/image/requirements.txt
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE NOTICE /src/
COPY service /src/service
COPY pyspark_firn /src/pyspark_firn
ARG COMMIT=
# A wheel for any platform would be one without kernels.
RUN FIRN_COMMIT="${COMMIT}" /tools/bin/python -m pip wheel -q --no-deps --no-build-isolation -w /wheels . \
 && if ls /wheels/*-none-any.whl 2>/dev/null; then echo 'firn: no kernel was compiled' >&2; exit 1; fi \
 && /tools/bin/python -m pip --python /opt/firn/bin/python install -q --no-deps /wheels/*.whl \
 && /opt/firn/bin/firn --version
COPY deploy/image/firn_image /src/firn_image
# botocore describes four hundred services, of which S3 and those that give credentials for it are asked here.
RUN packages=$(/opt/firn/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && cp -r /src/firn_image "$packages/" \
 && find "$packages/botocore/data" -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name sts ! -name sso ! -name sso-oidc ! -name signin -exec rm -r {} + \
 && /opt/firn/bin/python -m compileall -q /opt/firn/lib

# -- what runs
FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* \
 && groupadd --gid 10001 firn \
 && useradd --uid 10001 --gid firn --no-create-home --home-dir /var/lib/firn --shell /usr/sbin/nologin firn \
 && install -d -o firn -g root -m 0770 /var/lib/firn \
 && install -d /etc/firn
COPY --from=build /opt/firn /opt/firn
COPY --chmod=0755 deploy/image/firn-health /usr/local/bin/firn-health
COPY LICENSE NOTICE /usr/share/doc/firn/
RUN ln -s /opt/firn/bin/firn /usr/local/bin/firn

ARG VERSION=0.1.0
ARG COMMIT=
LABEL org.opencontainers.image.title="Firn" \
      org.opencontainers.image.description="A tiered-storage log service that speaks the Apache Kafka protocol" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"

ENV PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/firn
VOLUME /var/lib/firn
EXPOSE 9092 9093 9464
STOPSIGNAL SIGTERM
# Whether it lives, not whether it serves: a node that waits for its controllers is not to be killed.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 CMD ["firn-health"]
# tini hands signals on and collects orphans; -I: nothing of a volume is imported.
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/firn/bin/python", "-I", "-m", "firn_image"]
CMD ["server"]

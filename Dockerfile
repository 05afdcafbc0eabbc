# The codebase with all that commands need of what `make setup` installs, for the CPU.
#   docker build -t jaxreplay .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/runs:/jaxreplay/runs" jaxreplay \
#       experiments.train --agent dqn --replay per --env gymnax/CartPole-v1 --out runs/x
# (make the folder runs first, or docker makes it root's)
FROM python:3.11-slim

# MuJoCo draws without a screen by EGL. Debian keeps one version of each, so none is named.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends libegl1 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/*

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /jaxreplay

# Before the code, so that a change of code installs nothing again. The editable install is a path
# to this folder.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN python -m pip install -c constraints.txt \
    -e '.[codebase,gymnax,brax,xminigrid,gymnasium,mujoco,box2d,atari,papers,minari,search]'

COPY . .
RUN useradd --uid 1000 user && mkdir -p runs && chown user runs
USER 1000
# Whoever --user names may write here: caches of matplotlib and of compiled programs.
ENV HOME=/tmp
ENTRYPOINT ["python", "-m"]
CMD ["experiments.train", "--help"]

# docker build -t attnorm . && docker run --gpus all attnorm attention=hnas task=gigaword
# The base carries CUDA; without a GPU the same image trains on the CPU.
FROM nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04

ENV DEBIAN_FRONTEND=noninteractive PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1001 --shell /bin/bash researcher

USER 1001
WORKDIR /home/researcher/attnorm

COPY --chown=researcher . .
RUN make setup

ENV PATH="/home/researcher/attnorm/.venv/bin:$PATH"
ENTRYPOINT ["python", "train.py"]
CMD ["attention=hnas", "task=gigaword"]

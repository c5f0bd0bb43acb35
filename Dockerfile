# tape-ds on a CUDA image: docker build -t tape-ds . && docker run --gpus all --ipc host -it -v /data:/data tape-ds
#
# torch brings CUDA's libraries itself; the image is a -devel one for nvcc, which flash-attn and DeepSpeed's own operators
# (zero3_offload's Adam) are compiled with. Its CUDA is that of torch: docs/cluster.md has the matrix.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install --yes --no-install-recommends \
        build-essential git make openssh-client pdsh python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/tape-ds PATH=/opt/tape-ds/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv $VIRTUAL_ENV

# The layers that take long depend on the pins alone. torch comes first, so that nothing pulls a build of its own.
WORKDIR /src
COPY requirements.txt requirements-demo.txt ./
RUN pip install "$(grep '^torch==' requirements.txt)" && pip install -r requirements.txt \
    && pip install --no-deps -r requirements-demo.txt

# flash-attn compiles for an hour on a few cores, and is optional: --build-arg GPU_EXTRA=1 brings the extra [gpu].
ARG GPU_EXTRA=
COPY . .
RUN pip install --no-build-isolation ".${GPU_EXTRA:+[gpu]}"

WORKDIR /work
CMD ["tape-ds", "--help"]

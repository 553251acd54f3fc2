# docker build -t pe_lab . && docker run --rm -v "$PWD/results:/results" pe_lab run pe=alibi logger=none
FROM python:3.11-slim
# torch.compile needs a compiler
RUN apt-get update \
  && apt-get install --yes --no-install-recommends g++ \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY conf conf
COPY hydra_plugins hydra_plugins
COPY pe_lab pe_lab
RUN pip install --no-cache-dir -c requirements.lock .
WORKDIR /results
ENTRYPOINT ["pe-lab"]
CMD ["--help"]

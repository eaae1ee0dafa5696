# docker build -t onespike . && docker run --rm -v "$PWD/result:/home/user/result" onespike demo --out result/demo
# Without an index that has the CPU builds of torch (--build-arg TORCH_INDEX=URL) the image holds the CUDA libraries, too.
FROM python:3.13 AS wheel
WORKDIR /source
COPY . .
RUN ONESPIKE_PREBUILT=1 pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG TORCH_INDEX
COPY constraints.txt /
COPY --from=wheel /wheels /wheels
RUN if [ -n "$TORCH_INDEX" ]; then pip install --no-cache-dir -c /constraints.txt --extra-index-url "$TORCH_INDEX" \
        $(sed -n -e 's/^torch==.*/&+cpu/p' -e 's/^torchvision==.*/&+cpu/p' /constraints.txt); fi \
    && pip install --no-cache-dir -c /constraints.txt "$(echo /wheels/onespike-*.whl)[demo]"
RUN useradd --create-home --uid 1000 user
USER user
WORKDIR /home/user
ENTRYPOINT ["onespike"]
CMD ["demo"]

# An image with the command, its libraries and iperf3, from the Debian package: `make image`. examples/containers uses it.
FROM debian:bookworm-slim
# Debian's name of the architecture; without one there must be packages of one only.
ARG ARCH=*
COPY target/packages/shortwire_*_${ARCH}.deb /tmp/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /tmp/shortwire_*.deb iperf3 \
 && rm -rf /var/lib/apt/lists/* /tmp/*.deb
CMD ["shortwire", "help"]

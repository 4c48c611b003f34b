# A static binary in an image with nothing else, run by a user that is not root.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/usr/local/bin/keyhole ./cmd/keyhole \
 && mkdir -p /out/var/lib/keyhole /out/etc/ssl/certs \
 && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/

FROM scratch
COPY --from=build /out/usr /usr
COPY --from=build /out/etc /etc
# A fresh named volume takes over the owner of the directory that it covers, so
# that the user below can write into it.
COPY --from=build --chown=65532:65532 /out/var/lib/keyhole /var/lib/keyhole
USER 65532:65532
ENV PATH=/usr/local/bin \
    KEYHOLE_DATA_DIR=/var/lib/keyhole \
    KEYHOLE_LISTEN=0.0.0.0:8082
VOLUME /var/lib/keyhole
# The admin listener stays on the container's loopback: docker exec reaches it.
EXPOSE 8082
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 CMD ["keyhole", "healthcheck"]
ENTRYPOINT ["keyhole"]
CMD ["serve"]

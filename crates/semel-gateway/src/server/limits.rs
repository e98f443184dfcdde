use std::time::Duration;

/// Bounds on the resources that clients can use.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Concurrent connections over all workers. Above it the server stops accepting, and new
    /// clients wait in the kernel's backlog.
    pub max_connections: usize,
    /// From the first byte of a request head to its last, and for a TLS handshake.
    pub header_timeout: Duration,
    /// How long a connection may be open without a request.
    pub idle_timeout: Duration,
    /// How long a request body may pause.
    pub body_idle_timeout: Duration,
    /// How long a client may leave a response unread while the socket buffer is full.
    pub write_stall_timeout: Duration,
    /// Maximum size of a request head, in bytes.
    pub max_header_bytes: usize,
    /// Concurrent requests on one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// How long a server that is asked to stop still accepts connections. Its responses ask clients
    /// to close theirs.
    pub drain_delay: Duration,
    /// After that: how long running requests may take before they are closed.
    pub drain: Duration,
}

impl Limits {
    /// A connection costs about 20 KiB with its buffers: this many fit in 200 MiB, and under
    /// the file limit of a common service unit once the upstream's sockets are added.
    pub const MAX_CONNECTIONS: usize = 10_000;
    /// A normal head fits in one packet; ten seconds allow for a lossy mobile connection.
    pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
    /// Longer than the 60 s for which common load balancers keep a connection, so that the balancer
    /// closes first: otherwise it may send a request on a connection that the gateway is closing.
    pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
    /// The usual default of servers between two reads of a body.
    pub const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
    /// The same for writing. A client that accepts one byte in this time keeps its connection.
    pub const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
    /// Fits cookies of 8 KiB and a long URI, and bounds the memory that a head can take.
    pub const MAX_HEADER_BYTES: usize = 32 * 1024;
    /// The minimum that RFC 9113 recommends.
    pub const MAX_CONCURRENT_STREAMS: u32 = 100;
    /// Within the 30 s that container schedulers wait before they kill.
    pub const DRAIN: Duration = Duration::from_secs(25);
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: Self::MAX_CONNECTIONS,
            header_timeout: Self::HEADER_TIMEOUT,
            idle_timeout: Self::IDLE_TIMEOUT,
            body_idle_timeout: Self::BODY_IDLE_TIMEOUT,
            write_stall_timeout: Self::WRITE_STALL_TIMEOUT,
            max_header_bytes: Self::MAX_HEADER_BYTES,
            max_concurrent_streams: Self::MAX_CONCURRENT_STREAMS,
            drain_delay: Duration::ZERO,
            drain: Self::DRAIN,
        }
    }
}

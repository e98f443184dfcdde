//! One thread per core.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::accept::{Drained, Shared, serve_shared};
use super::{Handler, Limits, ResponseBody, Tls};

/// Connections that may wait to be accepted, per listener: enough for a burst of reconnecting
/// clients after a restart. The kernel caps it at its own maximum.
const BACKLOG: i32 = 4096;

/// Binds `count` listeners to one address; the kernel distributes new connections among them.
/// With port 0 the first listener takes a free port and the others use the same one. With
/// `reuse_port` the address may be that of another process of the same user which this function bound.
///
/// # Errors
/// When the address cannot be bound.
pub fn bind(address: SocketAddr, count: usize, reuse_port: bool) -> io::Result<Vec<TcpListener>> {
    let mut address = address;
    // SO_REUSEPORT is meant for the threads of this process, but it would also let another gateway
    // of the same user share the port, take half of the connections, and execute requests again
    // that only the first gateway's store knows. So the port is first bound without sharing, which
    // fails if any process listens on it; unless the operator says that both have the same store.
    if address.port() != 0 && !reuse_port {
        socket(address)?.bind(&address.into())?;
    }
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        let socket = socket(address)?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for TIME_WAIT connections of the previous process.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// Server threads, each with its own runtime, listener and service.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<JoinHandle<io::Result<Drained>>>,
    /// Closed when the last worker has ended.
    ended: mpsc::Receiver<()>,
}

impl Workers {
    /// Starts a thread for every listener, see [`bind`].
    ///
    /// `make` is called on each thread, inside its runtime, with the worker's number. It returns the
    /// service, and a future that the worker awaits after its last connection has ended and before
    /// its runtime stops: it waits for what the service left running.
    ///
    /// # Errors
    /// When a thread cannot be started. Threads already started are stopped.
    pub fn start<S, RB, M, F>(
        listeners: Vec<TcpListener>,
        limits: Limits,
        tls: Option<Tls>,
        shutdown: &CancellationToken,
        make: M,
    ) -> io::Result<Self>
    where
        M: Fn(usize) -> (S, F) + Clone + Send + 'static,
        S: Handler<RB>,
        RB: ResponseBody,
        F: Future<Output = ()> + 'static,
    {
        let shared = Shared::new(limits, tls);
        let (alive, ended) = mpsc::channel(1);
        let mut threads = Vec::with_capacity(listeners.len());
        let stop = shutdown.child_token();
        for (number, listener) in listeners.into_iter().enumerate() {
            let (shared, make, alive) = (shared.clone(), make.clone(), alive.clone());
            // One child token per worker, so that connections do not contend for one lock.
            let shutdown = stop.child_token();
            let work = move || {
                let _alive = alive;
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                runtime.block_on(async {
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    let (service, after_drain) = make(number);
                    let drained = serve_shared(listener, service, shared, shutdown).await;
                    after_drain.await;
                    Ok(drained)
                })
            };
            let thread = std::thread::Builder::new().name(format!("semel-{number}"));
            threads.push(thread.spawn(work).inspect_err(|_| stop.cancel())?);
        }
        Ok(Self { threads, ended })
    }

    /// Waits until every worker has stopped.
    ///
    /// # Errors
    /// When a worker could not start its runtime, or panicked.
    ///
    /// # Cancellation
    /// The workers keep running until the token they were started with is cancelled.
    pub async fn stopped(mut self) -> io::Result<Drained> {
        // Nothing is ever sent; `recv` returns when the channel closes.
        let _ = self.ended.recv().await;
        let mut total = Drained::default();
        for thread in self.threads {
            let drained = thread
                .join()
                .map_err(|_| io::Error::other("a worker thread panicked"))??;
            total.cut += drained.cut;
        }
        Ok(total)
    }
}

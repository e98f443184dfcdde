//! A load generator that costs little, since it shares the cores with what it measures: one
//! thread, two system calls a request, no allocation.

mod connection;
mod latencies;
mod request;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use connection::Connection;
pub(crate) use latencies::Latencies;
pub(crate) use request::{Expect, Keyed, Keys, Plan, Request, Shot, kibibyte};

/// How long a server may be silent before the run fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The rest of large answers goes here.
const DISCARDED: usize = 256 << 10;

/// Distinguishes the timer's events from those of connections.
const TIMER: Token = Token(usize::MAX);

/// When a closed loop begins no further request.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Time(Duration),
    Requests(u64),
}

/// Connections to one server.
pub(crate) struct Client {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    discarded: Box<[u8]>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, connections: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let now = Instant::now();
        let mut opened = Vec::with_capacity(connections);
        for number in 0..connections {
            let mut connection = Connection::open(address, now)?;
            poll.registry().register(
                &mut connection.stream,
                Token(number),
                Interest::READABLE | Interest::WRITABLE,
            )?;
            opened.push(connection);
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(connections + 1),
            connections: opened,
            discarded: vec![0; DISCARDED].into(),
        })
    }

    /// Every connection sends its next request when the one before is answered. All are
    /// answered when this returns. Returns their number.
    pub(crate) fn closed(
        &mut self,
        plan: &mut impl Plan,
        until: Until,
        latencies: &mut Latencies,
    ) -> Result<u64> {
        let start = Instant::now();
        let (end, most) = match until {
            Until::Time(time) => (Some(start + time), u64::MAX),
            Until::Requests(count) => (None, count),
        };
        let (mut sent, mut answered) = (0, 0);
        for connection in &mut self.connections {
            if sent < most {
                connection.send(&plan.next(), Instant::now())?;
                sent += 1;
            }
        }
        while answered < sent {
            self.wait()?;
            for event in &self.events {
                let connection = &mut self.connections[event.token().0];
                if event.is_writable() {
                    connection.write()?;
                }
                if event.is_readable() && connection.read(&mut self.discarded)? {
                    // One look at the clock ends this request and begins the next.
                    let now = Instant::now();
                    latencies.record(now - connection.began);
                    answered += 1;
                    if sent < most && end.is_none_or(|end| now < end) {
                        connection.send(&plan.next(), now)?;
                        sent += 1;
                    }
                }
            }
        }
        Ok(answered)
    }

    /// Requests at fixed moments, `per_second` of them, independent of the server. Latencies
    /// count from these moments, so that waiting for a free connection counts, too.
    pub(crate) fn paced(
        &mut self,
        plan: &mut impl Plan,
        per_second: f64,
        time: Duration,
        latencies: &mut Latencies,
    ) -> Result<u64> {
        let timer = timer(Duration::from_secs_f64(1.0 / per_second))?;
        let timer_descriptor = timer.as_raw_fd();
        let mut source = SourceFd(&timer_descriptor);
        self.poll
            .registry()
            .register(&mut source, TIMER, Interest::READABLE)?;

        let start = Instant::now();
        let all = (time.as_secs_f64() * per_second) as u64;
        // In turns: one that is never used would be closed by the server for idling.
        let mut idle: VecDeque<usize> = (0..self.connections.len()).collect();
        let (mut sent, mut answered) = (0, 0);
        while answered < all {
            let due = (start.elapsed().as_secs_f64() * per_second) as u64;
            while sent < due.min(all) {
                let Some(free) = idle.pop_front() else { break };
                let moment = start + Duration::from_secs_f64((sent + 1) as f64 / per_second);
                self.connections[free].send(&plan.next(), moment)?;
                sent += 1;
            }
            self.wait()?;
            for event in &self.events {
                if event.token() == TIMER {
                    // Only to be woken again; the clock determines how many are due.
                    rustix::io::read(&timer, &mut [0; 8])?;
                    continue;
                }
                let connection = &mut self.connections[event.token().0];
                if event.is_writable() {
                    connection.write()?;
                }
                if event.is_readable() && connection.read(&mut self.discarded)? {
                    latencies.record(connection.began.elapsed());
                    answered += 1;
                    idle.push_back(event.token().0);
                }
            }
            ensure!(
                start.elapsed() < time * 2 + PATIENCE,
                "the server does not keep up with {per_second} requests per second"
            );
        }
        self.poll.registry().deregister(&mut source)?;
        Ok(answered)
    }

    fn wait(&mut self) -> Result<()> {
        loop {
            match self.poll.poll(&mut self.events, Some(PATIENCE)) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
                Ok(()) => break,
            }
        }
        ensure!(!self.events.is_empty(), "no answer in {PATIENCE:?}");
        Ok(())
    }
}

/// Fires again and again, to the microsecond.
fn timer(interval: Duration) -> Result<std::os::fd::OwnedFd> {
    let timer = rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
    )?;
    let interval = Timespec::try_from(interval)?;
    let period = Itimerspec {
        it_interval: interval,
        it_value: interval,
    };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &period)?;
    Ok(timer)
}

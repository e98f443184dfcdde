//! After a `101`: bytes in both directions, and nothing else.

use std::future::poll_fn;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional};

use super::error::Error;
use super::link::Link;

/// Connects the upstream's socket with the client's, once the client has its `101`.
pub(super) async fn open(mut link: Box<Link>, client: OnUpgrade) -> Result<(), Error> {
    // hyper is done with the connection as soon as it has seen the 101.
    poll_fn(|cx| link.poll_drive(cx)).await;
    let (mut upstream, ahead) = link
        .into_raw()
        .ok_or_else(|| Error::sent("the upstream closed on its upgrade"))?;
    tokio::spawn(async move {
        let Ok(client) = client.await else {
            return;
        };
        let mut client = TokioIo::new(client);
        // The upstream may have spoken first, right behind its answer.
        if !ahead.is_empty() && client.write_all(&ahead).await.is_err() {
            return;
        }
        // Either side going away ends it; there is nobody to tell.
        let _ = copy_bidirectional(&mut client, &mut upstream).await;
    });
    Ok(())
}

//! After a `101`: copies bytes in both directions.

use std::future::poll_fn;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional};

use super::connection::UpstreamConnection;
use super::error::Error;

/// Connects the upstream's socket with the client's, once the client has received its `101`.
pub(super) async fn open(
    mut connection: Box<UpstreamConnection>,
    client: OnUpgrade,
) -> Result<(), Error> {
    // hyper is done with the connection as soon as it has seen the 101.
    poll_fn(|cx| connection.poll_drive(cx)).await;
    let (mut upstream, buffered) = connection
        .into_raw()
        .ok_or_else(|| Error::sent("the upstream closed the connection during the upgrade"))?;
    tokio::spawn(async move {
        let Ok(client) = client.await else {
            return;
        };
        let mut client = TokioIo::new(client);
        // The upstream may have sent its first bytes together with the response head.
        if !buffered.is_empty() && client.write_all(&buffered).await.is_err() {
            return;
        }
        // The tunnel ends when either side closes; there is no response left to report an error in.
        let _ = copy_bidirectional(&mut client, &mut upstream).await;
    });
    Ok(())
}

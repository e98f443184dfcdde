//! What the gateway tells beside the answer: to the client that asks how its operation goes, and
//! to the application that executes it.

use axum::http::Method;

use crate::world::{Answer, Call, Door, World};

/// Asks how an operation goes, as `tenant`.
async fn asked(world: &World, path: &str, tenant: Option<&str>) -> Answer {
    let mut call = Call::to(world.address, Method::GET, path);
    if let Some(tenant) = tenant {
        call = call.header("x-account", tenant);
    }
    call.send().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_is_shown_to_its_tenant_alone() {
    let world = World::new(Door::Gateway).await;
    for (key, path) in [("k1", "/do/status-201"), ("k2", "/do/status-503")] {
        world.post(path, key, "{}").await;
    }
    for record in world.records().await {
        let path = format!("/.semel/operations/{}", record.id);
        let own = asked(&world, &path, Some("acme")).await;
        assert_eq!(own.status, 200);
        assert_eq!(own.json()["operation_id"], record.id.to_string());
        // To everybody else it is as if there were none.
        let none = path.replace(
            &record.id.to_string(),
            "01890a5d-ac96-774b-bcce-b302099a8057",
        );
        let none = asked(&world, &none, Some("acme")).await;
        assert_eq!(none.status, 404);
        for stranger in [Some("other"), None] {
            let told = asked(&world, &path, stranger).await;
            assert_eq!((told.status, &told.body), (none.status, &none.body));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_downstream_key_is_the_same_on_every_attempt() {
    let world = World::new(Door::Gateway).await;
    for key in ["k1", "k1", "k2"] {
        // Not begun: the next request with the key is another attempt.
        world.post("/do/status-408", key, "{}").await;
    }
    let told = |name: &str| -> Vec<String> {
        let lines = |seen: crate::app::Seen| seen.headers[name].to_str().unwrap().to_owned();
        world.app.seen().into_iter().map(lines).collect()
    };
    assert_eq!(told("semel-attempt"), ["1", "2", "1"]);
    let keys = told("semel-downstream-key");
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
}

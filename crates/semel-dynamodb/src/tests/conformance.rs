//! The store keeps every rule of the state machine, on both servers.

mod on_extenddb {
    use crate::tests::server::{OnServer, Server};

    semel_testkit::conformance_suite!(OnServer::new(Server::ExtendDb));

    #[test]
    fn random_histories_agree_with_the_pure_function() {
        semel_testkit::histories::assert_agrees_with_model(&OnServer::new(Server::ExtendDb), 12);
    }
}

mod on_dynoxide {
    use crate::tests::server::{OnServer, Server};

    semel_testkit::conformance_suite!(OnServer::new(Server::Dynoxide));

    #[test]
    fn random_histories_agree_with_the_pure_function() {
        semel_testkit::histories::assert_agrees_with_model(&OnServer::new(Server::Dynoxide), 24);
    }
}

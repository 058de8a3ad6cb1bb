//! Every promise of the traits, each as a test of its own.

fn main() -> std::process::ExitCode {
    conformance::suite::main(my_backend::MyBackend)
}

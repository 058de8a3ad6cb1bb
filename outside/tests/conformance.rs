//! The suite, as in any project with a backend.

fn main() -> std::process::ExitCode {
    conformance::suite::main(my_backend::MyBackend)
}

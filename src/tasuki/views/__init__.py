"""What a person looks at: pure view models and thin faces. Fed with the values of `--json`."""

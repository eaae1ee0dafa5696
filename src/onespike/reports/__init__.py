"""Results → figures. Each is a pure function of results and returns a Figure."""

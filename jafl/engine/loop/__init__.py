"""The loop form: one server step after the other, trip by trip or in waves."""

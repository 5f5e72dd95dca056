"""Makes the parts of a coordinator and connects them, on a driver that leads or on one that waits."""

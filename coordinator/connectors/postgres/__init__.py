"""The sink for PostgreSQL: sessions, statements, and rows as COPY takes them."""

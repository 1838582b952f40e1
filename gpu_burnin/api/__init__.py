"""What crosses a border: between node, cluster and controller. Formats and names; nothing here acts."""

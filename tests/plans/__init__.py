"""Plans that somebody really ran or published, with every process group that they need."""

//! The certificate of the webhook, from files that somebody else renews: what they say is taken over while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;

#[derive(Debug)]
pub struct Certificate {
    files: [PathBuf; 2],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    in_use: Arc<CertifiedKey>,
    /// What was last read, in use or not.
    read: [Vec<u8>; 2],
}

impl Certificate {
    /// A chain of certificates, the server's own first, and its key, both as PEM.
    pub fn read(chain: &Path, key: &Path) -> Result<Certificate> {
        let files = [chain.to_path_buf(), key.to_path_buf()];
        let read = contents(&files)?;
        let in_use = Arc::new(parse(&read)?);
        Ok(Certificate { files, state: Mutex::new(State { in_use, read }) })
    }

    /// Takes over what the files say, if that has changed. One of two that do not belong together, or cannot be read, changes
    /// nothing: they may be about to be written.
    pub fn look(&self) -> Option<Result<()>> {
        let read = contents(&self.files).ok()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if read == state.read {
            return None;
        }
        let parsed = parse(&read);
        state.read = read;
        Some(parsed.map(|parsed| state.in_use = Arc::new(parsed)))
    }

    pub fn config(self: &Arc<Self>) -> Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .context("TLS 1.3")?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.state.lock().unwrap_or_else(PoisonError::into_inner).in_use.clone())
    }
}

fn contents([chain, key]: &[PathBuf; 2]) -> Result<[Vec<u8>; 2]> {
    let read =
        |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    Ok([read(chain)?, read(key)?])
}

fn parse([chain, key]: &[Vec<u8>; 2]) -> Result<CertifiedKey> {
    let chain: Vec<CertificateDer> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .context("the certificate is not PEM")?;
    if chain.is_empty() {
        bail!("there is no certificate in the file (-----BEGIN CERTIFICATE-----)");
    }
    let key = PrivateKeyDer::from_pem_slice(key).context("there is no private key in the file")?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .context("the certificate and the key cannot be used together")
}

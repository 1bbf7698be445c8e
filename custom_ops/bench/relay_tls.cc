// TLS 1.3 for the relay's benchmark: OpenSSL's libssl with AES-128-GCM, the relay's own cipher, and
// a self-signed certificate made at start. The client checks nothing: only the speed is of
// interest.
#include <stdexcept>

#include "bench/relay_streams.h"

#ifdef STROM_BENCH_TLS
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#endif

namespace strom::bench {
#ifdef STROM_BENCH_TLS
namespace {

void Check(bool good, const char* what) {
  if (good) return;
  char text[256];
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  throw std::runtime_error(std::string(what) + ": " + text);
}

class TlsStream final : public Stream {
 public:
  TlsStream(SSL* ssl, int descriptor) : ssl_(ssl), descriptor_(descriptor) {}
  ~TlsStream() override {
    SSL_free(ssl_);
    close(descriptor_);
  }

  bool Write(Bytes bytes) override {
    size_t written;
    return SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written) == 1;
  }

  bool Read(std::span<uint8_t> out) override {
    while (!out.empty()) {
      size_t got;
      if (SSL_read_ex(ssl_, out.data(), out.size(), &got) != 1) return false;
      out = out.subspan(got);
    }
    return true;
  }

  void StopReading() override { shutdown(descriptor_, SHUT_RD); }
  std::string CountersJson() const override { return "{}"; }

 private:
  SSL* ssl_;
  int descriptor_;
};

class TlsFactory final : public StreamFactory {
 public:
  TlsFactory() : context_(SSL_CTX_new(TLS_method())) {
    std::signal(SIGPIPE, SIG_IGN);  // libssl writes without MSG_NOSIGNAL
    Check(context_ != nullptr, "SSL_CTX_new");
    Check(SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1, "TLS 1.3");
    Check(SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256") == 1, "AES-128-GCM");
    SSL_CTX_set_read_ahead(context_, 1);
    SSL_CTX_set_default_read_buffer_len(context_, size_t{128} << 10);
    MakeCertificate();
  }
  ~TlsFactory() override { SSL_CTX_free(context_); }

  std::unique_ptr<Stream> Make(int descriptor, bool accepted) override {
    SSL* ssl = SSL_new(context_);
    Check(ssl != nullptr && SSL_set_fd(ssl, descriptor) == 1, "SSL_new");
    auto stream = std::make_unique<TlsStream>(ssl, descriptor);
    Check((accepted ? SSL_accept(ssl) : SSL_connect(ssl)) == 1, "the TLS handshake");
    return stream;
  }

 private:
  void MakeCertificate() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    Check(key != nullptr && certificate != nullptr, "a key");
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    Check(X509_sign(certificate, key, EVP_sha256()) > 0, "a certificate");
    Check(SSL_CTX_use_certificate(context_, certificate) == 1 &&
              SSL_CTX_use_PrivateKey(context_, key) == 1,
          "its use");
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  SSL_CTX* context_;
};

}  // namespace

std::unique_ptr<StreamFactory> MakeTlsFactory() { return std::make_unique<TlsFactory>(); }
std::string TlsLibrary() { return OPENSSL_VERSION_TEXT; }
#else
std::unique_ptr<StreamFactory> MakeTlsFactory() {
  throw std::runtime_error("relay_peer was built without OpenSSL's libssl.a (libssl-dev)");
}
std::string TlsLibrary() { return ""; }
#endif

}  // namespace strom::bench
